"""Choose candidate zones and their order, and drop zones after failures, without side effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.gce.catalog.locations import continent_of, is_ai_zone, is_region, is_zone, region_of
from provision.gce.catalog.prices import Prices
from provision.gce.diagnosis.cases import Scope
from provision.gce.options import GceOptions

__all__ = ["Region", "Search", "candidates", "is_region", "is_zone", "region_of"]


@dataclass(frozen=True)
class Region:
    """Zones of one region, any of which can be used.

    Attributes:
        name: Name of the region, ``us-central1``.
        zones: Zones in the order of preference. If there are several, Compute Engine chooses one.
    """

    name: str
    zones: tuple[str, ...]


def candidates(cloud: GceOptions, offered: Mapping[str, Collection[str]], prices: Prices) -> list[Region]:
    """Return the zones that can have the instances, grouped by region, the best ones first.

    Zones and regions that the user gave are in the given order: a zone alone, a region with all of its zones. If none
    was given, regions are ordered by their cheapest zone, and the zones of a region by price; they are on the
    continent of the cheapest zone, unless the user allowed all. A zone with an unknown price comes after those with a
    known price. If the price is limited, zones above the limit or with an unknown price are left out. No zone is
    repeated. Each zone for Flex-start VMs is separate, because Compute Engine does not choose it.

    Args:
        cloud: Options of the instances.
        offered: Zones by region in which Compute Engine offers such machines.
        prices: Current prices.
    """
    if cloud.max_price_usd_h:
        offered = _up_to(cloud.max_price_usd_h, cloud, offered, prices)

    def order(zone: str) -> tuple[bool, float]:
        usd_h = prices.usd_h(cloud, zone)
        return (usd_h is None, usd_h or 0.0)

    def by_price(zones: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(zones, key=lambda zone: (order(zone), zone)))

    if cloud.zones:
        regions = [_named(location, offered, by_price) for location in cloud.zones]
    else:
        regions = [Region(name, by_price(zones)) for name, zones in sorted(offered.items()) if zones]
        regions.sort(key=lambda region: order(region.zones[0]))
        if regions and not cloud.anywhere:
            continent = _preferred_continent(regions, is_priced=not order(regions[0].zones[0])[0])
            regions = [region for region in regions if continent_of(region.name) == continent]
    requests = (request for region in _without_repetition(regions) for request in _requestable(region))
    if not cloud.flex_start:
        return list(requests)
    return [Region(region.name, (zone,)) for region in requests for zone in region.zones]


def _up_to(
    limit_usd_h: float, cloud: GceOptions, offered: Mapping[str, Collection[str]], prices: Prices
) -> dict[str, list[str]]:
    """Return the zones, by region, in which the price is known and not above the limit."""

    def is_paid(zone: str) -> bool:
        usd_h = prices.usd_h(cloud, zone)
        return usd_h is not None and usd_h <= limit_usd_h

    return {name: [zone for zone in zones if is_paid(zone)] for name, zones in offered.items()}


def _preferred_continent(regions: Sequence[Region], *, is_priced: bool) -> str:
    """Return the continent of the first region, or the one with most zones if no price is known."""
    if is_priced:
        return continent_of(regions[0].name)
    zones = Counter(continent_of(region.name) for region in regions for _ in region.zones)
    return zones.most_common(1)[0][0]


def _requestable(region: Region) -> Iterator[Region]:
    """Yield the parts of a region that each need one request, because Compute Engine does not choose zones for AI."""
    chosen = tuple(zone for zone in region.zones if not is_ai_zone(zone))
    if chosen:
        yield Region(region.name, chosen)
    for zone in region.zones:
        if is_ai_zone(zone):
            yield Region(region.name, (zone,))


@dataclass(frozen=True)
class Search:
    """Regions and zones that remain to be tried; each failure returns a new search.

    Attributes:
        remaining: Regions to try, each with its remaining zones, the best first.
    """

    remaining: tuple[Region, ...]

    @classmethod
    def over(cls, regions: Iterable[Region]) -> Search:
        """Return a search that has tried none of `regions`."""
        return cls(tuple(_without_repetition(regions)))

    def next(self) -> Region | None:
        """Return the region to try now, with its remaining zones; None if there is none."""
        return self.remaining[0] if self.remaining else None

    def skip(self, tried: Region, scope: Scope, zones_available: Iterable[str] = ()) -> Search:
        """Return the search that remains after a failure.

        Args:
            tried: Zones that were tried.
            scope: Scope of the failure. RETRY removes nothing.
            zones_available: Zones that have room, according to Compute Engine; they are moved to the front.
        """
        remaining = self.remaining
        if scope is Scope.EVERYTHING:
            remaining = ()
        elif scope is Scope.REGION:
            remaining = tuple(region for region in remaining if region.name != tried.name)
        elif scope is Scope.ZONE:
            left = (
                Region(region.name, tuple(zone for zone in region.zones if zone not in tried.zones))
                for region in remaining
            )
            remaining = tuple(region for region in left if region.zones)
        return replace(self, remaining=_preferring(remaining, frozenset(zones_available)))

    def each_separately(self, region: Region, tried: Collection[str], zones_available: Iterable[str] = ()) -> Search:
        """Return the search that remains after a request for any zone of `region` failed: each zone separately.

        Args:
            region: Region that was tried, the next of this search.
            tried: Zones that Compute Engine tried, according to its report.
            zones_available: Zones that have room, according to Compute Engine; these come first.
        """
        zones = tuple(Region(region.name, (zone,)) for zone in region.zones if zone not in tried)
        remaining = tuple(other for other in self.remaining if other != region)
        return replace(self, remaining=_preferring((*zones, *remaining), frozenset(zones_available)))


def _named(
    location: str, offered: Mapping[str, Collection[str]], by_price: Callable[[Iterable[str]], tuple[str, ...]]
) -> Region:
    """Return the zone or region that a user gave; without zones if it does not offer such a machine."""
    if is_zone(location):
        name = region_of(location)
        return Region(name, (location,) if location in offered.get(name, ()) else ())
    return Region(location, by_price(offered.get(location, ())))


def _without_repetition(regions: Iterable[Region]) -> Iterator[Region]:
    """Yield `regions` without repeated zones and without regions that have no zone left."""
    seen: set[str] = set()
    for region in regions:
        zones = tuple(zone for zone in dict.fromkeys(region.zones) if zone not in seen)
        seen.update(zones)
        if zones:
            yield Region(region.name, zones)


def _preferring(regions: tuple[Region, ...], zones: frozenset[str]) -> tuple[Region, ...]:
    """Return `regions` with those that have one of `zones` first, and these zones first within each region."""
    ordered = [
        Region(region.name, tuple(sorted(region.zones, key=lambda zone: zone not in zones))) for region in regions
    ]
    return tuple(sorted(ordered, key=lambda region: region.zones[0] not in zones))
