"""Choose candidate zones and their order, drop zones after failures, and explain why no zone is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from google.cloud import compute_v1

from provision.gce.access.networks import with_nat
from provision.gce.account import Account
from provision.gce.api.client import Api, ApiError
from provision.gce.api.prices import Prices, dollars
from provision.gce.api.resources import zone_of
from provision.gce.catalog.machines import describe
from provision.gce.catalog.names import Fleet, continent_of, is_zone, last, region_of, regions_of, subnetwork_of
from provision.gce.diagnosis import Scope, grant_role
from provision.gce.options import GceOptions
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted, format_money


def candidates(cloud: GceOptions, offering: Iterable[str], prices: Prices) -> list[str]:
    """Return the zones that can have the instances, the best ones first.

    Zones and regions that the user gave are in the given order. The zones of a region, or all if none was given, are
    in the order of their prices, those with an unknown price last. Without a request, they are on the continent of
    the cheapest zone, unless the user allowed all. If the price is limited, zones above the limit or with an unknown
    price are left out.

    Args:
        cloud: Options of the instances.
        offering: Zones in which Compute Engine offers such machines.
        prices: Current prices.
    """
    usd_h = {zone: prices.usd_h(cloud, zone) for zone in offering}
    unknown = float("inf")
    zones = sorted(usd_h, key=lambda zone: (unknown if usd_h[zone] is None else usd_h[zone], zone))
    if limit := cloud.max_price_usd_h:
        zones = [zone for zone in zones if (price := usd_h[zone]) is not None and price <= limit]
    if cloud.zones:
        named = (zone for place in cloud.zones for zone in zones if place in (zone, region_of(zone)))
        return list(dict.fromkeys(named))
    if not zones or cloud.anywhere:
        return zones
    continents = [continent_of(zone) for zone in zones]
    most = Counter(continents).most_common(1)[0][0]
    home = most if usd_h[zones[0]] is None else continents[0]
    return [zone for zone in zones if continent_of(zone) == home]


def remaining(zones: Iterable[str], tried: str, scope: Scope, preferred: Collection[str] = ()) -> list[str]:
    """Return the zones that are worth trying after a failure in one of them; those that have capacity come first.

    Args:
        zones: The zones that were left, with the tried one.
        tried: The zone that was tried.
        scope: Scope of the failure. RETRY removes nothing.
        preferred: Zones that have capacity, according to Compute Engine.
    """
    excluded: dict[Scope, Collection[str]] = {
        Scope.RETRY: (),
        Scope.ZONE: (tried,),
        Scope.REGION: [zone for zone in zones if region_of(zone) == region_of(tried)],
        Scope.EVERYTHING: list(zones),
    }
    return sorted((zone for zone in zones if zone not in excluded[scope]), key=lambda zone: zone not in preferred)


def offered(account: Account, fleet: Fleet, pinned: Sequence[str] = (), *, is_baked: bool = False) -> list[str]:
    """Return the zones that offer the machine type and GPU of a fleet; the first of `pinned` if there are any.

    Args:
        account: The owner of the fleet.
        fleet: The fleet.
        pinned: Zones of the fleet's other instances.
        is_baked: The image has the packages of the fleet, so that instances download none.

    Raises:
        ApiError: a call failed.
        ProviderError: instances in none of them could download the packages of the fleet.
    """
    if pinned:
        return [pinned[0]]
    api, cloud = account.api, fleet.cloud
    calls = [lambda: api.machine_types(cloud.machine_type)]
    if cloud.gpu:
        calls.append(lambda: api.accelerator_types(cloud.gpu))
    listings = api.together(*calls)
    account.silent = frozenset(zone for listing in listings for zone in listing.silent)
    zones, *others = ([zone_of(resource) for resource in resources] for resources in listings)
    region = subnetwork_of(cloud.subnetwork).region
    zones = [zone for zone in zones if is_zone(zone) and all(zone in other for other in others)]
    zones = [zone for zone in zones if region in ("", region_of(zone))]
    return zones if is_baked else with_nat(account, fleet, zones)


def zones_to_try(
    account: Account, cloud: GceOptions, zones: Sequence[str], pinned: Sequence[str], count: int
) -> list[str]:
    """Return the zones that are tried for `count` instances, in this order.

    Args:
        account: The owner of the fleet.
        cloud: Options of the instances, resolved.
        zones: Zones that offer such machines.
        pinned: Zones of the fleet's other instances.
        count: Number of instances.

    Raises:
        ApiError: a call failed.
        ProviderError: there are none, or only at a higher price than the limit.
    """
    cloud, offering = replace(cloud, zones=tuple(pinned)) if pinned else cloud, zones
    reserved = find_reserved(account, cloud, count) if cloud.reservation else None
    zones = [zone for zone in zones if reserved is None or zone in reserved]
    if chosen := candidates(cloud, zones, account.prices):
        return chosen
    if unlimited := candidates(replace(cloud, max_price_usd_h=0.0, anywhere=True), zones, account.prices):
        raise too_expensive(cloud, unlimited, account.prices)
    raise explain_no_offer(account.api, cloud, offering, account.silent)


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


# --- zones and machine types that do not exist, or offer no such machine ------------------------------------------

_CLOSE = 0.75  # of difflib: us-central2 is us-central1, but europe-north1 is not europe-west1
_SHOWN = 4


def check_locations(
    cloud: GceOptions, regions: Sequence[compute_v1.Region], offering: Iterable[str], project: str
) -> None:
    """Check that all requested zones and regions exist.

    Args:
        cloud: Options of the instances.
        regions: The regions.
        offering: Zones that offer the machine; a region may not list new ones.
        project: The project.

    Raises:
        ProviderError: one does not exist.
    """
    zones_of = _zones_of(regions)
    valid = {*zones_of, *(zone for zones in zones_of.values() for zone in zones), *offering}
    for place in cloud.zones:
        if place not in valid:
            region = next(iter(regions_of([place])))
            near = region if region in valid else _nearest(place, valid)
            raise ProviderError(
                ErrorKind.USAGE,
                f"Compute Engine has no zone or region {place!r}",
                hint=f"did you mean {near}?" if near else "without --zone, the cheapest zones are tried first",
                next_steps=[("gcloud", "compute", "zones", "list", "--project", project)],
                again={"--zone": near or None},
            )


def explain_no_offer(
    api: Api, cloud: GceOptions, offering: Collection[str], silent: Collection[str]
) -> ProviderError:
    """Return the error that no requested zone offers the machine.

    Args:
        api: The client.
        cloud: Options of the instances, resolved; its zones exist.
        offering: Zones that offer the machine, requested or not.
        silent: Zones and regions that did not answer.

    Raises:
        ApiError: a call failed.
    """
    requested = [place for place in silent if not cloud.zones or {place, *regions_of([place])} & {*cloud.zones}]
    if requested:
        message = (
            f"{', '.join(sorted(requested))} did not answer, so it is unknown whether {describe(cloud)} is offered"
        )
        hint = "repeat the command when the zone answers, or leave --zone out to try other zones"
        return ProviderError(ErrorKind.UNREACHABLE, f"{message} there", hint=hint, again={"--zone": None})
    if not offering and not api.machine_types(cloud.machine_type):
        return _unknown_machine_type(api, cloud)
    continents = {continent_of(region) for region in regions_of(cloud.zones)}
    near = sorted(regions_of(offering), key=lambda region: (continent_of(region) not in continents, region))
    kind, name = ("accelerator-types", cloud.gpu) if cloud.gpu else ("machine-types", cloud.machine_type)
    verb = "does not" if len(cloud.zones) == 1 else "do not"
    subject = f"{', '.join(cloud.zones)} {verb} offer" if cloud.zones else "no zone offers"
    return ProviderError(
        ErrorKind.CAPACITY,
        f"{subject} {describe(cloud)}",
        cause=f"it is offered in {', '.join(near[:_SHOWN])}{', …' if near[_SHOWN:] else ''}" if near else "",
        hint="" if near else "select another --gpu or --machine-type",
        next_steps=[("gcloud", "compute", kind, "list", "--project", api.project, f"--filter=name={name}")],
        again={"--zone": near[0]} if near else None,
    )


def _unknown_machine_type(api: Api, cloud: GceOptions) -> ProviderError:
    """Return the error that no zone has the machine type, with the most similar one of a zone."""
    zones_of = _zones_of(api.regions())
    zone = next(zone for place in (*cloud.zones, *zones_of) for zone in zones_of.get(place, [place]))
    valid = api.machine_type_names(zone)
    near = _nearest(cloud.machine_type, valid)
    return ProviderError(
        ErrorKind.USAGE,
        f"Compute Engine has no machine type {cloud.machine_type!r}",
        hint=f"did you mean {near}?" if near else "",
        next_steps=[("gcloud", "compute", "machine-types", "list", "--project", api.project, "--zones", zone)],
        again={"--machine-type": near} if near else None,
    )


def _zones_of(regions: Sequence[compute_v1.Region]) -> dict[str, list[str]]:
    """Return the zones by region."""
    return {region.name: [last(url) for url in region.zones] for region in regions}


def _nearest(name: str, valid: Collection[str]) -> str:
    """Return the name that was most likely meant; empty if none is close."""
    return next(iter(get_close_matches(name, valid, n=1, cutoff=_CLOSE)), "")


# --- reservations -------------------------------------------------------------------------------------------------


def split_path(reservation: str) -> tuple[str, str]:
    """Return project and name of the reservation of an option; the project is empty for one of the own project."""
    words = reservation.split("/")
    return (words[1], words[3]) if len(words) > 1 else ("", reservation)


def find_reserved(account: Account, cloud: GceOptions, count: int) -> list[str] | None:
    """Return the zones in which the reservation of `cloud` has room for `count` instances.

    None: the caller may not list the reservations of another project, and has given the zone.

    Raises:
        ApiError: the reservations cannot be listed.
        ProviderError: the reservation cannot be used, or is in another zone.
    """
    given, name = split_path(cloud.reservation)
    project = given or account.api.project
    try:
        reservations = account.api.reservations(name, given)
    except ApiError as error:
        if project == account.api.project or error.status not in (403, 404):
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
        message = f"reservation {name!r} does not exist in project {project}"
        raise _refusal(ErrorKind.USAGE, project, message, "check the name")
    problems = {zone_of(each): _problem(count, each, project) for each in reservations}
    zones = [zone for zone, problem in problems.items() if problem is None]
    if not zones:
        raise next(problem for problem in problems.values() if problem is not None)
    if cloud.zones and not any({zone, region_of(zone)} & {*cloud.zones} for zone in zones):
        message = f"reservation {name!r} is in {', '.join(zones)}, not in {', '.join(cloud.zones)}"
        hint = "instances use a reservation only in its zone, and all instances of a fleet are in one zone"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--zone": zones[0]})
    return zones


def _problem(count: int, reservation: compute_v1.Reservation, project: str) -> ProviderError | None:
    """Return why a reservation cannot be used; None if it can."""
    label, specific = f"reservation {reservation.name!r} in {zone_of(reservation)}", reservation.specific_reservation
    free = specific.count - specific.in_use_count
    status = (reservation.status or "unknown").lower()
    # fmt: off
    rows: Sequence[tuple[object, ErrorKind, str, str, Mapping[str, str | bool | None] | None]] = (
        (status != "ready", ErrorKind.CAPACITY, f"is not ready, but {status}", "wait until it is ready", None),
        (not reservation.specific_reservation_required, ErrorKind.USAGE, "cannot be selected by name", "such a "
            "reservation is used by all matching instances, without --reservation", {"--reservation": None}),
        (free < count, ErrorKind.CAPACITY, f"has room for {counted(max(0, free), 'instance')}, {count} requested",
            "wait until other instances are deleted, or enlarge the reservation", None),
    )
    # fmt: on
    problems = (
        _refusal(kind, project, f"{label} {words}", hint, again) for is_, kind, words, hint, again in rows if is_
    )
    return next(problems, None)


def _refusal(
    kind: ErrorKind, project: str, message: str, hint: str, again: Mapping[str, str | bool | None] | None = None
) -> ProviderError:
    steps = [("gcloud", "compute", "reservations", "list", "--project", project)]
    return ProviderError(kind, message, hint=hint, next_steps=steps, again=again)
