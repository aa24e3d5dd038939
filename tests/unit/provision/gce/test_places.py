"""The order in which zones and regions are tried, and the effect of failures on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.catalog.machines import resolved
from provision.gce.catalog.names import continent_of, region_of
from provision.gce.catalog.prices import ADDRESS, Prices, Rate, table
from provision.gce.diagnosis import Scope
from provision.gce.options import GceOptions
from provision.gce.zones import Region, Search, candidates

T4 = resolved(GceOptions(gpu="t4"))
OFFERED = {
    "us-central1": ["us-central1-f", "us-central1-a"],
    "asia-east1": ["asia-east1-a", "asia-east1-c"],
    "europe-west2": ["europe-west2-b"],
    "me-central2": ["me-central2-a"],
}


ANYWHERE = resolved(GceOptions(gpu="t4", anywhere=True))


def in_zones(*zones: str) -> GceOptions:
    return resolved(GceOptions(gpu="t4", zones=zones))


def test_the_cheapest_region_comes_first_and_unknown_prices_last() -> None:
    assert candidates(ANYWHERE, OFFERED, table()) == [
        Region("us-central1", ("us-central1-a", "us-central1-f")),
        Region("asia-east1", ("asia-east1-a", "asia-east1-c")),
        Region("europe-west2", ("europe-west2-b",)),
        Region("me-central2", ("me-central2-a",)),
    ]


def test_spot_has_an_order_of_its_own() -> None:
    spot = resolved(GceOptions(gpu="t4", spot=True, anywhere=True))
    assert [region.name for region in candidates(spot, OFFERED, table())] == [
        "europe-west2",
        "asia-east1",
        "us-central1",
        "me-central2",
    ]


def test_only_the_continent_of_the_cheapest_zone_is_tried() -> None:
    more = {**OFFERED, "northamerica-northeast1": ["northamerica-northeast1-c"], "us-west4": ["us-west4-a"]}
    assert {region.name for region in candidates(T4, more, table())} == {
        *("us-central1", "us-west4", "northamerica-northeast1"),
    }


def test_without_prices_the_continent_with_most_zones_is_tried() -> None:
    h100 = resolved(GceOptions(gpu="h100:8"))
    assert candidates(h100, {**OFFERED, "us-east4": ["us-east4-b"]}, table()) == [
        Region("us-central1", ("us-central1-a", "us-central1-f")),
        Region("us-east4", ("us-east4-b",)),
    ]
    assert candidates(h100, {}, table()) == []


def test_zones_above_the_limit_of_the_price_or_without_a_price_are_left_out() -> None:
    limited = replace(ANYWHERE, max_price_usd_h=0.62)
    assert [region.name for region in candidates(limited, OFFERED, table())] == ["us-central1", "asia-east1"]
    named = replace(limited, zones=("me-central2", "europe-west2-b", "us-central1-f"))
    assert candidates(named, OFFERED, table()) == [Region("us-central1", ("us-central1-f",))]


def test_the_user_s_places_come_in_the_user_s_order() -> None:
    assert candidates(in_zones("europe-west2", "us-central1-f", "us-central1-a", "asia-east1"), OFFERED, table()) == [
        Region("europe-west2", ("europe-west2-b",)),
        Region("us-central1", ("us-central1-f",)),
        Region("us-central1", ("us-central1-a",)),
        Region("asia-east1", ("asia-east1-a", "asia-east1-c")),
    ]


def test_a_zone_and_then_its_region_is_the_rest_of_the_region() -> None:
    assert candidates(in_zones("us-central1-f", "us-central1"), OFFERED, table()) == [
        Region("us-central1", ("us-central1-f",)),
        Region("us-central1", ("us-central1-a",)),
    ]


@pytest.mark.parametrize("place", ["us-central1-b", "us-east1", "us-east1-c"])
def test_places_without_such_machines_are_left_out(place: str) -> None:
    assert candidates(in_zones(place), OFFERED, table()) == []


US = Region("us-central1", ("us-central1-a", "us-central1-b"))
EU = Region("europe-west1", ("europe-west1-b", "europe-west1-c"))
ASIA = Region("asia-east1", ("asia-east1-a",))
US_A = Region("us-central1", ("us-central1-a",))
US_B = Region("us-central1", ("us-central1-b",))


def test_a_zone_that_failed_leaves_the_rest_of_its_region() -> None:
    search = Search.over([US, EU])
    assert search.next() == US
    search = search.skip(US_A, Scope.ZONE)
    assert search.next() == US_B
    search = search.skip(US_B, Scope.ZONE)
    assert search.next() == EU


def test_a_region_that_failed_in_all_its_zones_is_done_with() -> None:
    assert Search.over([US, EU]).skip(US, Scope.ZONE).next() == EU


def test_a_failure_of_a_region_removes_all_its_zones() -> None:
    assert Search.over([US_A, EU, US_B]).skip(US_A, Scope.REGION).remaining == (EU,)


def test_what_fails_everywhere_ends_the_search() -> None:
    assert Search.over([US, EU]).skip(US_A, Scope.EVERYTHING).next() is None


def test_a_temporary_failure_removes_no_zone() -> None:
    search = Search.over([US, EU])
    assert search.skip(US, Scope.RETRY) == search


def test_after_a_region_its_zones_come_one_by_one_without_those_tried() -> None:
    search = Search.over([US, EU]).each_separately(US, {"us-central1-a"})
    assert search.remaining == (Region("us-central1", ("us-central1-b",)), EU)
    search = Search.over([EU, ASIA]).each_separately(EU, (), ("europe-west1-c",))
    assert [region.zones for region in search.remaining] == [("europe-west1-c",), ("europe-west1-b",), ASIA.zones]


def test_a_zone_for_ai_is_asked_for_alone() -> None:
    offered = candidates(T4, {"us-central1": ["us-central1-ai1a", "us-central1-a", "us-central1-f"]}, table())
    assert offered == [
        Region("us-central1", ("us-central1-a", "us-central1-f")),
        Region("us-central1", ("us-central1-ai1a",)),
    ]


def test_zones_that_have_room_come_first() -> None:
    search = Search.over([US, EU, ASIA]).skip(US, Scope.ZONE, ("asia-east1-a", "europe-west1-c", "us-central1-a"))
    assert search.remaining == (Region("europe-west1", ("europe-west1-c", "europe-west1-b")), ASIA)


def test_zones_that_the_user_did_not_allow_are_never_offered() -> None:
    search = Search.over([US]).skip(US_A, Scope.ZONE, ("asia-east1-a",))
    assert search.next() == Region("us-central1", ("us-central1-b",))


ZONES = [f"{region}-{letter}" for region in ("us-west1", "us-east1", "asia-east1") for letter in "abc"]


@dataclass(frozen=True)
class Step:
    """A failure of one attempt: its number of zones, its scope, and the zones reported to have capacity."""

    zonal: bool
    scope: Scope
    available: tuple[str, ...]


steps = st.builds(
    Step, st.booleans(), st.sampled_from(Scope), st.lists(st.sampled_from(ZONES), max_size=3).map(tuple)
)
regions = st.lists(st.lists(st.sampled_from(ZONES), min_size=1, max_size=4), max_size=5).map(
    lambda groups: [
        Region(region_of(group[0]), tuple(z for z in group if region_of(z) == region_of(group[0])))
        for group in groups
    ]
)


@given(regions, st.lists(steps, max_size=40))
def test_no_place_is_tried_twice_and_the_search_ends(given_regions: list[Region], failures: list[Step]) -> None:
    allowed = {zone for region in given_regions for zone in region.zones}
    search = Search.over(given_regions)
    tried: set[str] = set()
    closed: set[str] = set()
    for step in failures:
        region = search.next()
        if region is None:
            break
        assert region.zones
        assert set(region.zones) <= allowed
        assert not set(region.zones) & tried
        assert region.name not in closed
        place = Region(region.name, region.zones[:1]) if step.zonal else region
        before = search
        search = search.skip(place, step.scope, step.available)
        if step.scope is Scope.EVERYTHING:
            assert search.next() is None
        elif step.scope is Scope.REGION:
            closed.add(region.name)
        elif step.scope is Scope.ZONE:
            tried |= set(place.zones)
        if step.scope is not Scope.RETRY:
            assert zones_left(search) < zones_left(before)
        wanted = [zone for zone in step.available if zone in {z for r in search.remaining for z in r.zones}]
        upcoming = search.next()
        if wanted:
            assert upcoming is not None
            assert upcoming.zones[0] in wanted


def zones_left(search: Search) -> int:
    return sum(len(region.zones) for region in search.remaining)


@given(regions)
def test_every_zone_is_tried(given_regions: list[Region]) -> None:
    search = Search.over(given_regions)
    seen: list[str] = []
    while (region := search.next()) is not None:
        seen += region.zones
        search = search.skip(region, Scope.ZONE)
    assert sorted(seen) == sorted({zone for region in given_regions for zone in region.zones})


PLACES = [
    f"{region}-{letter}" for region in ("us-west1", "us-east1", "asia-east1", "europe-west1") for letter in "ab"
]
rates = st.dictionaries(st.sampled_from(PLACES), st.integers(10, 1000).map(lambda mills: mills / 1000))
requests = st.builds(
    GceOptions,
    machine_type=st.just("n1-standard-4"),
    zones=st.lists(st.sampled_from([*PLACES, "us-west1", "europe-west1"]), max_size=2).map(tuple),
    anywhere=st.booleans(),
    max_price_usd_h=st.sampled_from((0.0, 0.5, 2.0)),
)


@given(requests, rates, st.sets(st.sampled_from(PLACES)))
def test_no_candidate_is_above_the_limit_or_on_another_continent(
    cloud: GceOptions, usd_h: dict[str, float], available: set[str]
) -> None:
    prices = Prices(
        {
            **{("n1-standard", zone): Rate(rate, rate) for zone, rate in usd_h.items()},
            **{(item, ""): Rate(0.0, 0.0) for item in ("pd-balanced", ADDRESS)},
        },
        "2026-11-01",
        "this test",
    )
    offered: dict[str, list[str]] = {}
    for zone in sorted(available):
        offered.setdefault(region_of(zone), []).append(zone)
    cloud = resolved(cloud)
    zones = [zone for region in candidates(cloud, offered, prices) for zone in region.zones]
    asked = {zone for zone in available if not cloud.zones or {zone, region_of(zone)} & set(cloud.zones)}
    paid = {zone for zone in asked if not cloud.max_price_usd_h or 4 * usd_h.get(zone, 9.0) <= cloud.max_price_usd_h}
    assert set(zones) <= paid
    if cloud.zones or cloud.anywhere or not zones:
        assert set(zones) == paid
    else:
        [continent] = {continent_of(region_of(zone)) for zone in zones}
        cheapest = min(paid, key=lambda zone: usd_h.get(zone, 9.0))
        assert usd_h.get(zones[0], 9.0) == usd_h.get(cheapest, 9.0)
        assert set(zones) == {zone for zone in paid if continent_of(region_of(zone)) == continent}
