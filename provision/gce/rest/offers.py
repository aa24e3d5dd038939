"""Explain why no zone offers the requested machine: a name may not exist, or it is offered in other zones only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from provision.gce.catalog.locations import continent_of, regions_of
from provision.gce.catalog.machines import describe
from provision.gce.options import GceOptions
from provision.gce.rest.api import Api, Json
from provision.gce.rest.resources import last
from provision.provider import ErrorKind, ProviderError

_CLOSE = 0.75  # of difflib: us-central2 is us-central1, but europe-north1 is not europe-west1
_SHOWN = 4


def check_locations(
    cloud: GceOptions, regions: Sequence[Json], offering: Mapping[str, Sequence[str]], project: str
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


def _zones_of(regions: Sequence[Json]) -> dict[str, list[str]]:
    """Return the zones by region."""
    return {str(region["name"]): [last(str(url)) for url in region.get("zones", ())] for region in regions}


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
    return ProviderError(
        ErrorKind.UNREACHABLE,
        f"{', '.join(zones)} did not answer, so it is unknown whether {describe(cloud)} is offered there",
        hint="repeat the command when the zone answers, or leave --zone out to try other zones",
        again={"--zone": None},
    )


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
