"""Zones that a fleet may be created in: one continent, and the limit of the price."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from provision.gce.catalog.locations import continent_of
from provision.gce.catalog.prices import table
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from tests.cloud.moves import check, event
from tests.emulator.catalog.locations import ZONES

if TYPE_CHECKING:
    from tests.cloud.histories import History


@event(0.2)
def fill_regions(history: History) -> None:
    region = history.random.choice(("us-", "us-central1-", "europe-"))
    for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west4-a", "europe-west1-b"):
        if zone.startswith(region):
            history.emulator.set_capacity(zone, 0)
    history.told.append(f"no capacity in {region}*")


@check("up")
def check_price_and_continent(history: History) -> None:
    given = history.settings.of("gce")
    machine = {key: given[key] for key in ("gpu", "machine_type", "spot") if given[key]}
    cloud = GceProvider.change(GceOptions(), machine)
    prices = {zone: usd_h for zone in ZONES if (usd_h := table().usd_h(cloud, zone)) is not None}
    home = Counter(map(continent_of, ZONES)).most_common(1)[0][0]
    if prices:
        home = continent_of(min(prices, key=lambda each: prices[each]))
    for zone in {instance.blueprint.zone for instance in history.running()}:
        assert not given["max_price_usd_h"] or prices[zone] <= given["max_price_usd_h"]
        if not given["zones"] and not given["anywhere"]:
            assert continent_of(zone) == home
