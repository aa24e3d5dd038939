"""Choose candidate zones and their order, drop zones after failures, and explain why no zone is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from google.cloud import compute_v1

from provision.gce.access.networks import with_nat
from provision.gce.account import Account
from provision.gce.api.client import Api
from provision.gce.api.messages import ApiError
from provision.gce.api.resources import zone_of
from provision.gce.catalog.gpus import GPUS
from provision.gce.catalog.machines import describe, gpu_of, series_of
from provision.gce.catalog.names import continent_of, is_ai_zone, is_zone, last, region_of, regions_of, subnetwork_of
from provision.gce.catalog.prices import Prices, dollars
from provision.gce.catalog.roles import grant_role
from provision.gce.diagnosis import Scope
from provision.gce.options import LOCAL_SSD, GceOptions
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted, format_money


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


def offered(
    account: Account, spec: FleetSpec, cloud: GceOptions, pinned: Sequence[str] = (), *, is_baked: bool = False
) -> Mapping[str, Sequence[str]]:
    """Return the zones, by region, that offer the machine type and GPU; the first of `pinned` if there are any.

    Args:
        account: The owner of the fleet.
        spec: The fleet.
        cloud: Its options, resolved.
        pinned: Zones of the fleet's other instances.
        is_baked: The image has the packages of the fleet, so that instances download none.

    Raises:
        ApiError: a call failed.
        ProviderError: instances in none of them could download the packages of the fleet.
    """
    if pinned:
        return {region_of(pinned[0]): [pinned[0]]}
    api = account.api
    calls = [lambda: api.machine_types(cloud.machine_type)]
    if cloud.gpu:
        calls.append(lambda: api.accelerator_types(cloud.gpu))
    listings = api.together(*calls)
    account.silent = frozenset(zone for listing in listings for zone in listing.silent)
    zones, *others = ([zone_of(resource) for resource in resources] for resources in listings)
    region = subnetwork_of(cloud.subnetwork).region
    zones = [zone for zone in zones if is_zone(zone) and all(zone in other for other in others)]
    zones = [zone for zone in zones if region in ("", region_of(zone))]
    by_region: dict[str, list[str]] = {}
    for zone in zones:
        by_region.setdefault(region_of(zone), []).append(zone)
    return by_region if is_baked else with_nat(account, spec, cloud, by_region)


def regions_to_try(
    account: Account, cloud: GceOptions, zones: Mapping[str, Sequence[str]], pinned: Sequence[str], count: int
) -> list[Region]:
    """Return the regions and zones that are tried for `count` instances, in this order.

    Args:
        account: The owner of the fleet.
        cloud: Options of the instances, resolved.
        zones: Zones by region that offer such machines.
        pinned: Zones of the fleet's other instances.
        count: Number of instances.

    Raises:
        ApiError: a call failed.
        ProviderError: there are none, or only at a higher price than the limit.
    """
    cloud, offering = replace(cloud, zones=tuple(pinned)) if pinned else cloud, zones
    if cloud.reservation:
        reserved = find_reserved(account, cloud, count)
        if reserved is not None:
            zones = {region: [zone for zone in listed if zone in reserved] for region, listed in zones.items()}
    regions = candidates(cloud, zones, account.prices)
    if not regions:
        unlimited = candidates(replace(cloud, max_price_usd_h=0.0, anywhere=True), zones, account.prices)
        if unlimited:
            raise too_expensive(cloud, [zone for region in unlimited for zone in region.zones], account.prices)
        raise explain_no_offer(account.api, cloud, offering, account.silent)
    return regions


def find_reserved(account: Account, cloud: GceOptions, count: int) -> list[str] | None:
    """Return the zones in which the reservation of `cloud` has room for `count` instances.

    None: the caller may not list the reservations of another project, and has given the zone.

    Raises:
        ApiError: the reservations cannot be listed.
        ProviderError: the reservation cannot be used, or is in another zone.
    """
    project, name = split_path(cloud.reservation)
    try:
        reservations = account.api.reservations(name, project)
    except ApiError as error:
        if project in ("", account.api.project) or error.status not in (403, 404):
            raise
        if cloud.zones:
            return None
        raise ProviderError(
            ErrorKind.USAGE,
            f"reservation {name!r} of project {project} cannot be read, so its zone is unknown",
            hint="give its zone with --zone, or let an administrator of that project permit it",
            next_steps=[grant_role("projects", [project], "roles/compute.viewer", account.api.member())],
        ) from error
    if not reservations:
        account.require(reservations.silent)
    reserved = reserved_zones(cloud, count, reservations, project or account.api.project)
    if cloud.zones and not any({zone, region_of(zone)} & {*cloud.zones} for zone in reserved):
        message = f"reservation {name!r} is in {', '.join(reserved)}, not in {', '.join(cloud.zones)}"
        hint = "instances use a reservation only in its zone, and all instances of a fleet are in one zone"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--zone": reserved[0]})
    return reserved


def too_expensive(cloud: GceOptions, zones: Iterable[str], prices: Prices) -> ProviderError:
    """Return the error that each of `zones` has a price above the limit of the price, or an unknown one."""
    limit = f"--max-price {format_money(cloud.max_price_usd_h)}"
    priced = [(usd_h, zone) for zone in zones if (usd_h := prices.usd_h(cloud, zone)) is not None]
    if not priced:
        message = f"the price of {describe(cloud)} is unknown, so {limit} excludes all zones"
        hint = "select another machine or zone, or remove --max-price"
        return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--max-price": None})
    usd_h, zone = min(priced)
    return ProviderError(
        ErrorKind.USAGE,
        f"{describe(cloud)} costs {format_money(usd_h)}/h with its disk and address in the cheapest zone, {zone}; "
        f"the limit is {limit}",
        hint="raise the limit, or select a cheaper machine",
        again={"--max-price": dollars(usd_h)},
    )


_CLOSE = 0.75  # of difflib: us-central2 is us-central1, but europe-north1 is not europe-west1
_SHOWN = 4


def check_locations(
    cloud: GceOptions, regions: Sequence[compute_v1.Region], offering: Mapping[str, Sequence[str]], project: str
) -> None:
    """Check that all requested zones and regions exist.

    Args:
        cloud: Options of the instances.
        regions: The regions, in REST's JSON.
        offering: Zones by region that offer the machine; a region may not list new ones.
        project: The project.

    Raises:
        ProviderError: one does not exist.
    """
    zones_of = _zones_of(regions)
    valid = {*zones_of, *(zone for zones in (*zones_of.values(), *offering.values()) for zone in zones)}
    for place in cloud.zones:
        if place not in valid:
            raise _unknown_location(place, valid, project)


def explain_no_offer(
    api: Api, cloud: GceOptions, offering: Mapping[str, Sequence[str]], silent: Collection[str]
) -> ProviderError:
    """Return the error that no requested zone offers the machine.

    Args:
        api: The client.
        cloud: Options of the instances, resolved; its zones exist.
        offering: Zones by region that offer the machine, requested or not.
        silent: Zones and regions that did not answer.

    Raises:
        ApiError: a call failed.
    """
    requested = [place for place in silent if not cloud.zones or {place, *regions_of([place])} & {*cloud.zones}]
    if requested:
        return _silent(sorted(requested), cloud)
    regions = [region for region, zones in offering.items() if zones]
    if not regions and not api.machine_types(cloud.machine_type):
        zones_of = _zones_of(api.regions())
        zone = next(zone for place in (*cloud.zones, *zones_of) for zone in zones_of.get(place, [place]))
        return _unknown_machine_type(cloud, api.machine_type_names(zone), zone, api.project)
    return _elsewhere(cloud, regions, api.project)


def _zones_of(regions: Sequence[compute_v1.Region]) -> dict[str, list[str]]:
    """Return the zones by region."""
    return {region.name: [last(url) for url in region.zones] for region in regions}


def _unknown_location(place: str, valid: Collection[str], project: str) -> ProviderError:
    region = next(iter(regions_of([place])))
    near = region if region in valid else _nearest(place, valid)
    return ProviderError(
        ErrorKind.USAGE,
        f"Compute Engine has no zone or region {place!r}",
        hint=f"did you mean {near}?" if near else "without --zone, the cheapest zones are tried first",
        next_steps=[("gcloud", "compute", "zones", "list", "--project", project)],
        again={"--zone": near or None},
    )


def _unknown_machine_type(cloud: GceOptions, valid: Collection[str], zone: str, project: str) -> ProviderError:
    near = _nearest_size(cloud.machine_type, valid) or _nearest(cloud.machine_type, valid)
    return ProviderError(
        ErrorKind.USAGE,
        f"Compute Engine has no machine type {cloud.machine_type!r}",
        hint=f"did you mean {near}?" if near else "",
        next_steps=[("gcloud", "compute", "machine-types", "list", "--project", project, "--zones", zone)],
        again={"--machine-type": near} if near else None,
    )


def _silent(zones: Sequence[str], cloud: GceOptions) -> ProviderError:
    message = f"{', '.join(zones)} did not answer, so it is unknown whether {describe(cloud)} is offered there"
    hint = "repeat the command when the zone answers, or leave --zone out to try other zones"
    return ProviderError(ErrorKind.UNREACHABLE, message, hint=hint, again={"--zone": None})


def _elsewhere(cloud: GceOptions, regions: Sequence[str], project: str) -> ProviderError:
    """Return the error that only `regions`, or none, offer the machine."""
    continents = {continent_of(region) for region in regions_of(cloud.zones)}
    near = sorted(regions, key=lambda region: (continent_of(region) not in continents, region))
    kind, name = ("accelerator-types", cloud.gpu) if cloud.gpu else ("machine-types", cloud.machine_type)
    return ProviderError(
        ErrorKind.CAPACITY,
        f"{_subject(cloud.zones)} {describe(cloud)}",
        cause=f"it is offered in {', '.join(near[:_SHOWN])}{', …' if near[_SHOWN:] else ''}" if near else "",
        hint="" if near else "select another --gpu or --machine-type",
        next_steps=[("gcloud", "compute", kind, "list", "--project", project, f"--filter=name={name}")],
        again={"--zone": near[0]} if near else None,
    )


def _subject(places: Sequence[str]) -> str:
    if not places:
        return "no zone offers"
    return f"{', '.join(places)} {'does' if len(places) == 1 else 'do'} not offer"


def _nearest_size(name: str, valid: Iterable[str]) -> str:
    """Return the machine type of the same series with the nearest number of vCPUs; empty if there is none."""
    series, _, size = name.rpartition("-")
    sizes = [other for kind, _, other in (each.rpartition("-") for each in valid) if kind == series]
    if not size.isdecimal() or not (numbers := [int(other) for other in sizes if other.isdecimal()]):
        return ""
    return f"{series}-{min(numbers, key=lambda number: (abs(number - int(size)), number))}"


def _nearest(name: str, valid: Collection[str]) -> str:
    """Return the name that was most likely meant; empty if none is close."""
    return next(iter(get_close_matches(name, valid, n=1, cutoff=_CLOSE)), "")


def split_path(reservation: str) -> tuple[str, str]:
    """Return project and name of the reservation of an option; the project is empty for one of the own project."""
    words = reservation.split("/")
    return (words[1], words[3]) if len(words) > 1 else ("", reservation)


def reserved_zones(
    cloud: GceOptions, count: int, reservations: Sequence[compute_v1.Reservation], project: str
) -> list[str]:
    """Return the zones whose reservation has room for new instances.

    Args:
        cloud: Options of the instances, resolved.
        count: Number of new instances.
        reservations: The reservations of the requested name, of which each zone may have one, in REST's JSON.
        project: Project of the reservations.

    Raises:
        ProviderError: no zone has one that fits.
    """
    name = split_path(cloud.reservation)[1]
    if not reservations:
        raise _refusal(
            ErrorKind.USAGE, project, f"reservation {name!r} does not exist in project {project}", "check the name"
        )
    problems = {zone_of(each): _problem(cloud, count, each, project) for each in reservations}
    zones = [zone for zone, problem in problems.items() if problem is None]
    if not zones:
        raise next(problem for problem in problems.values() if problem is not None)
    return zones


def _problem(
    cloud: GceOptions, count: int, reservation: compute_v1.Reservation, project: str
) -> ProviderError | None:
    """Return why a reservation cannot be used; None if it can."""
    label = f"reservation {reservation.name!r} in {zone_of(reservation)}"
    specific = reservation.specific_reservation
    if reservation.status != "READY":
        status = (reservation.status or "unknown").lower()
        return _refusal(ErrorKind.CAPACITY, project, f"{label} is not ready, but {status}", "wait until it is ready")
    if not reservation.specific_reservation_required:
        return _refusal(
            ErrorKind.USAGE,
            project,
            f"{label} cannot be selected by name",
            "such a reservation is used by all matching instances, without --reservation",
            again={"--reservation": None},
        )
    if (fitting := _fitting_options(cloud, specific.instance_properties)) is not None:
        disks = fitting.get("--local-ssd")
        of_ssds = {"--local-ssd": f"{disks} {LOCAL_SSD}"} if disks else {}
        text = " and ".join(str(value) for value in {**fitting, **of_ssds}.values() if value)
        return _refusal(
            ErrorKind.USAGE,
            project,
            f"{label} is for instances with {text}, not for {describe(cloud)}",
            "request the machine of the reservation",
            again=fitting,
        )
    free = specific.count - specific.in_use_count
    if free < count:
        return _refusal(
            ErrorKind.CAPACITY,
            project,
            f"{label} has room for {counted(max(0, free), 'instance')}, {count} requested",
            "wait until other instances are deleted, or enlarge the reservation",
        )
    return None


def _fitting_options(
    cloud: GceOptions, properties: compute_v1.AllocationSpecificSKUAllocationReservedInstanceProperties
) -> dict[str, str | bool | None] | None:
    """Return the options of the machine for which a reservation is, if `cloud` has other ones; otherwise None."""
    gpu = gpu_of(cloud)
    attached = {cloud.gpu: cloud.gpus} if gpu is not None and not gpu.built_in else {}
    listed = {last(each.accelerator_type): each.accelerator_count for each in properties.guest_accelerators}
    machine_type = properties.machine_type
    local_ssds = len(properties.local_ssds) if series_of(machine_type).local_ssds else 0
    same = machine_type == cloud.machine_type and local_ssds == cloud.local_ssds
    if same and (listed == attached or (cloud.gpus and not attached)):
        return None
    shorts = {each.accelerator: each.short for each in GPUS.values()}
    gpus = [f"{shorts.get(kind, kind)}:{number}" for kind, number in listed.items()]
    disks = {"--local-ssd": str(local_ssds) if local_ssds else None} if local_ssds != cloud.local_ssds else {}
    return {"--machine-type": machine_type, "--gpu": gpus[0] if gpus else None, **disks}


def _refusal(
    kind: ErrorKind, project: str, message: str, hint: str, again: Mapping[str, str | bool | None] | None = None
) -> ProviderError:
    steps = [("gcloud", "compute", "reservations", "list", "--project", project)]
    return ProviderError(kind, message, hint=hint, next_steps=steps, again=again)
