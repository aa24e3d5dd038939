"""Where instances may stand: candidate zones in their order, and what is left of them after failures; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from provision.gce.catalog import prices
from provision.gce.catalog.locations import is_ai_zone, is_region, is_zone, region_of
from provision.gce.diagnosis import Scope
from provision.gce.options import GceOptions

__all__ = ["Region", "Search", "candidates", "is_region", "is_zone", "region_of"]


@dataclass(frozen=True)
class Region:
    """Zones of one region, of which any one would do.

    Attributes:
        name: ``us-central1``.
        zones: In the order of preference. One of several is chosen by Compute Engine.
    """

    name: str
    zones: tuple[str, ...]


def candidates(cloud: GceOptions, offered: Mapping[str, Collection[str]] | None) -> list[Region]:
    """Where the instances could stand, the best place first.

    Places that the user named come in the order in which they were named: a zone alone, a region with all of its
    zones. Where none was named, the zones of a region stand together, cheapest first, and the regions by their
    cheapest zone. A zone whose price is not known comes after those whose price is. No zone comes twice.

    Args:
        cloud: What is to be rented.
        offered: Zones by region in which Compute Engine says that such machines exist; None: not known, and those
            with a known price are taken.
    """
    by_region = _by_region(prices.zones()) if offered is None else {name: set(offered[name]) for name in offered}
    if cloud.zones:
        regions = [_named(cloud, place, by_region, offered is not None) for place in cloud.zones]
    else:
        priced = offered is None
        regions = [
            Region(name, _by_price(cloud, zones, only_priced=priced)) for name, zones in sorted(by_region.items())
        ]
        regions.sort(key=lambda region: _price_order(cloud, region.zones[0]) if region.zones else (True, 0.0))
    return [part for region in _without_repetition(regions) for part in _requestable(region)]


def _requestable(region: Region) -> Iterator[Region]:
    """Return the parts of a region that one request each can be about: Compute Engine chooses no zone for AI."""
    chosen = tuple(zone for zone in region.zones if not is_ai_zone(zone))
    if chosen:
        yield Region(region.name, chosen)
    for zone in region.zones:
        if is_ai_zone(zone):
            yield Region(region.name, (zone,))


@dataclass(frozen=True)
class Search:
    """Where it is still worth trying; each failure gives a new one.

    Attributes:
        remaining: What is still to be tried, the best place first.
    """

    remaining: tuple[Region, ...]

    @classmethod
    def over(cls, regions: Iterable[Region]) -> Search:
        """The search that has tried none of `regions`."""
        return cls(tuple(_without_repetition(regions)))

    def next(self) -> Region | None:
        """The place to try now, with the zones that are left of it; None: there is none."""
        return self.remaining[0] if self.remaining else None

    def skip(self, place: str | Region, scope: Scope, zones_available: Iterable[str] = ()) -> Search:
        """What is left after a failure.

        Args:
            place: Zone or region that was tried; a region stands for all of its zones, a Region for those it lists.
            scope: How far the failure goes. RETRY leaves everything as it is.
            zones_available: Zones that Compute Engine says have room: of the zones that are left, these come first.
        """
        if scope is Scope.EVERYTHING:
            return replace(self, remaining=())
        remaining = self.remaining
        if scope is Scope.REGION:
            name = place.name if isinstance(place, Region) else region_of(place) if is_zone(place) else place
            remaining = tuple(region for region in remaining if region.name != name)
        if scope is Scope.ZONE:
            remaining = tuple(_without_zones(remaining, place))
        return replace(self, remaining=_preferring(remaining, frozenset(zones_available)))

    def one_by_one(self, region: Region, tried: Collection[str], zones_available: Iterable[str] = ()) -> Search:
        """Return what is left after a request for any zone of `region` failed: one request for each of its zones.

        Args:
            region: What was tried, the next of this search.
            tried: Zones that Compute Engine says it tried.
            zones_available: Zones that Compute Engine says have room; these come first.
        """
        zones = tuple(Region(region.name, (zone,)) for zone in region.zones if zone not in tried)
        remaining = tuple(other for other in self.remaining if other != region)
        return replace(self, remaining=_preferring((*zones, *remaining), frozenset(zones_available)))


def _named(cloud: GceOptions, place: str, by_region: Mapping[str, Collection[str]], sure: bool) -> Region:
    """The place that a user named; without zones where there is no such machine."""
    if is_zone(place):
        name = region_of(place)
        return Region(name, (place,) if not sure or place in by_region.get(name, ()) else ())
    return Region(place, _by_price(cloud, by_region.get(place, ()), only_priced=False))


def _by_price(cloud: GceOptions, zones: Iterable[str], *, only_priced: bool) -> tuple[str, ...]:
    chosen = (zone for zone in zones if not only_priced or prices.price(cloud, zone) is not None)
    return tuple(sorted(chosen, key=lambda zone: (_price_order(cloud, zone), zone)))


def _price_order(cloud: GceOptions, zone: str) -> tuple[bool, float]:
    price = prices.price(cloud, zone)
    return (price is None, price or 0.0)


def _by_region(zones: Iterable[str]) -> dict[str, set[str]]:
    regions: dict[str, set[str]] = {}
    for zone in zones:
        regions.setdefault(region_of(zone), set()).add(zone)
    return regions


def _without_repetition(regions: Iterable[Region]) -> Iterator[Region]:
    """The same, without zones that came before and without regions that have none left."""
    seen: set[str] = set()
    for region in regions:
        zones = tuple(zone for zone in dict.fromkeys(region.zones) if zone not in seen)
        seen.update(zones)
        if zones:
            yield Region(region.name, zones)


def _without_zones(regions: Iterable[Region], place: str | Region) -> Iterator[Region]:
    for region in regions:
        if isinstance(place, Region):
            left = tuple(zone for zone in region.zones if zone not in place.zones)
        else:
            left = tuple(zone for zone in region.zones if place not in (zone, region.name))
        if left:
            yield Region(region.name, left)


def _preferring(regions: tuple[Region, ...], zones: frozenset[str]) -> tuple[Region, ...]:
    """Regions with one of `zones` first, and these first among their zones; otherwise in the same order."""
    ordered = [
        Region(region.name, tuple(sorted(region.zones, key=lambda zone: zone not in zones))) for region in regions
    ]
    return tuple(sorted(ordered, key=lambda region: region.zones[0] not in zones))
