"""Zones that a fleet may be created in: one continent, and the limit of the price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.gce.catalog.names import continent_of
from provision.gce.catalog.prices import table
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from tests.cloud.moves import RETRIED, check, event, sudden
from tests.emulator.catalog import NEW_PROJECT_QUOTAS, ZONES

if TYPE_CHECKING:
    from tests.cloud.histories import History


@sudden
@event(0.2)
def fill_regions(history: History) -> None:
    region = history.random.choice(("us-", "us-central1-", "europe-"))
    for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west4-a", "europe-west1-b"):
        if zone.startswith(region):
            history.emulator.set_capacity(zone, 0)
    history.told.append(f"no capacity in {region}*")


@event(0.2)
def change_quotas(history: History) -> None:
    """Let the project have the quotas of a new one, or others again."""
    limits = history.random.choice((NEW_PROJECT_QUOTAS, dict.fromkeys(NEW_PROJECT_QUOTAS, 1000.0)))
    for metric, limit in limits.items():
        history.emulator.set_quota(metric, limit)
    history.told.append(f"quotas: {limits['CPUS_ALL_REGIONS']:g} vCPUs, {limits['GPUS_ALL_REGIONS']:g} GPUs")


def free_zones(history: History) -> None:
    for zone in ZONES:
        history.emulator.set_capacity(zone, 100)
    change_quotas(history)
    history.told.append("capacity in all zones")


RETRIED.append(free_zones)


@check("up")
def check_price_and_continent(history: History) -> None:
    given = history.settings.of("gce")
    machine = {key: given[key] for key in ("gpu", "machine_type", "spot") if given[key]}
    cloud = GceProvider.change(GceOptions(), machine)
    prices = {zone: usd_h for zone in ZONES if (usd_h := table().usd_h(cloud, zone)) is not None}
    # If the price is unknown, the continent depends on the zones that answer.
    home = continent_of(min(prices, key=lambda each: prices[each])) if prices else ""
    for zone in {instance.blueprint.zone for instance in history.running()}:
        assert not given["max_price_usd_h"] or prices[zone] <= given["max_price_usd_h"]
        if home and not given["zones"] and not given["anywhere"] and not history.is_disturbed:
            assert continent_of(zone) == home
