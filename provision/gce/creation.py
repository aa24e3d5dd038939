"""Create instances on Compute Engine, all in one zone; try zones in order until one has capacity."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from provision.gce.access import os_login
from provision.gce.access.firewall import open_firewall
from provision.gce.access.host_keys import await_keys
from provision.gce.access.nat import with_nat
from provision.gce.account import Account
from provision.gce.catalog.locations import is_ai_zone
from provision.gce.catalog.machines import FLEX_WAIT_MIN_S, describe
from provision.gce.catalog.networks import subnetwork_of
from provision.gce.catalog.reservations import reserved_zones, split_path
from provision.gce.deletion import delete_instances
from provision.gce.diagnosis.cases import Diagnosis, Scope
from provision.gce.diagnosis.failures import Failure
from provision.gce.diagnosis.quotas import quota_request
from provision.gce.diagnosis.roles import grant_role
from provision.gce.expiry import correct_ends
from provision.gce.insertion import Attempt, insert
from provision.gce.limit import check_ends, current_budget, dearest, limited, too_expensive
from provision.gce.options import GceOptions
from provision.gce.power import prevent_restarts, start_for, stop_started
from provision.gce.quota import AS_STANDARD, amount_of, is_temporary
from provision.gce.rest import images
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.bodies.labels import instance_name
from provision.gce.rest.offers import explain_no_offer
from provision.gce.rest.resources import last, our_name, state_of, zone_of
from provision.gce.zones import Region, Search, candidates, is_zone, region_of
from provision.model import FleetSpec, InstanceState
from provision.provider import ErrorKind, Progress, ProviderError
from provision.quantities import counted

_RETRIES = 3


def create(account: Account, spec: FleetSpec, cloud: GceOptions, names: Sequence[str], progress: Progress) -> None:
    """Create the instances `names`, start stopped ones, and wait until each has published its host key.

    Raises:
        ApiError: a call failed.
        ProviderError: no zone has capacity; instances that were created on the way are deleted.
    """
    existing = _at_rest(account, spec.name)
    half = [
        resource
        for name, resource in existing.items()
        if name in names and state_of(resource) in (InstanceState.QUEUED, InstanceState.STARTING)
    ]
    delete_instances(account, half, progress)
    for resource in half:
        del existing[our_name(resource)]
    access = open_firewall(account, spec, cloud)
    if access.note:
        progress(account.host_project or account.api.project, access.note)
    stopped = [existing[name] for name in names if name in existing and existing[name].get("status") != "RUNNING"]
    missing = {name: instance_name(spec.name, account.owner, name) for name in names if name not in existing}
    _start(account, spec.name, cloud, stopped, len(missing), progress)
    if missing:
        if os_login.is_required(cloud, account.api.get_project()):
            cloud = _with_os_login(account, spec, cloud, progress)
        pinned = sorted({zone_of(resource) for resource in existing.values()})
        _insert(account, spec, cloud, missing, pinned, progress)
    made = account.named(spec.name)
    if cloud.flex_start:
        correct_ends(account, [made[name] for name in missing if name in made])
    await_keys(account, [made[name] for name in dict.fromkeys(names) if name in made], progress)


def _at_rest(account: Account, fleet: str) -> dict[str, Json]:
    """Return the instances of a fleet by name when none restarts any more: their disks may have files.

    Raises:
        ApiError: a restart takes too long.
    """
    existing: dict[str, Json] = {}

    def is_at_rest() -> bool:
        existing.clear()
        existing.update(account.named(fleet))
        return all(state_of(resource) is not InstanceState.RESTARTING for resource in existing.values())

    account.api.until(is_at_rest, "the restart of instances")
    return existing


# --- instances ----------------------------------------------------------------------------------------------------


def _start(
    account: Account, fleet: str, cloud: GceOptions, stopped: Sequence[Json], count: int, progress: Progress
) -> None:
    """Start stopped instances again, all or none; they and `count` others live on what the limit of the cost leaves.

    Raises:
        ProviderError: an instance does not start, or the limit of the cost does not pay for them.
    """
    if not stopped:
        return
    zone, price, allowed = zone_of(stopped[0]), None, cloud
    if cloud.max_cost_usd:
        check_ends(cloud, stopped)
        if cloud.has_fixed_end:
            stopped = prevent_restarts(account, stopped)
        price = account.prices.price(cloud, zone)
        paid = limited(current_budget(account, fleet, cloud), cloud, price, len(stopped) + count, account.clock())
        if isinstance(paid, ProviderError):
            raise paid
        allowed = paid
    if cloud.delete_after_s:
        os_login.extend(account, fleet, cloud.delete_after_s)
    try:
        start_for(account, allowed, stopped, price, progress)
    except ApiError as error:
        stop_started(account, stopped, progress)
        doing = f"start {counted(len(stopped), 'instance')} again ({describe(cloud)})"
        diagnosis = account.diagnosis(error.failures, doing, zone)
        if diagnosis.kind is ErrorKind.CAPACITY:
            diagnosis.hint = f"their disks are in {zone}, so they can start only there; --retry-until-up waits"
        raise diagnosis from error


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
        raise ProviderError(
            ErrorKind.USAGE,
            f"reservation {name!r} is in {', '.join(reserved)}, not in {', '.join(cloud.zones)}",
            hint="instances use a reservation only in its zone, and all instances of a fleet are in one zone",
            again={"--zone": reserved[0]},
        )
    return reserved


def _insert(
    account: Account,
    spec: FleetSpec,
    cloud: GceOptions,
    names: Mapping[str, str],
    pinned: Sequence[str],
    progress: Progress,
) -> None:
    """Create instances where there is capacity; otherwise let requests for Flex-start VMs wait for it.

    The arguments are those of `_search`.
    """
    try:
        _search(account, spec, replace(cloud, wait_s=0), names, pinned, progress)
    except ProviderError as error:
        if not cloud.flex_start or error.kind is not ErrorKind.CAPACITY:
            raise
        if not cloud.wait_s:
            error.hint = "--wait queues the request until there is capacity"
            error.again = {"--wait": "2h"}
            raise
        _search(account, spec, cloud, names, pinned, progress)


def _time_in_queue(left_s: float) -> int:
    """Return the time for which a request may be queued; 0 if less is left than Compute Engine accepts."""
    return int(left_s) if left_s >= FLEX_WAIT_MIN_S else 0


def _search(
    account: Account,
    spec: FleetSpec,
    cloud: GceOptions,
    names: Mapping[str, str],
    pinned: Sequence[str],
    progress: Progress,
) -> None:
    """Request all instances in one zone or region after another, until one has capacity.

    Args:
        account: The owner of the fleet.
        spec: The fleet.
        cloud: Its options, resolved.
        names: Names on Compute Engine by the names within the fleet.
        pinned: Zones of the fleet's other instances; if there are any, only the first is tried.
        progress: Called for each attempt.
    """
    until = account.clock() + cloud.wait_s
    image = _image(account, spec, cloud, progress)
    zones_by_region = offered(account, spec, cloud, pinned, is_baked=bool(image.path))
    search = Search.over(regions_to_try(account, cloud, zones_by_region, pinned, len(names)))
    refusals: dict[str, ProviderError] = {}
    diagnosis: ProviderError | None = None
    retries = 0
    while (region := search.next()) is not None:
        allowed = _limited(account, spec.name, cloud, region, len(names))
        if isinstance(allowed, ProviderError):
            diagnosis, search = diagnosis or allowed, search.skip(region, Scope.REGION)
            continue
        attempt = Attempt(region, names, _excluded(account, region, zones_by_region))
        progress(attempt.location, f"requesting {counted(len(names), 'instance')}")
        allowed = replace(allowed, wait_s=_time_in_queue(until - account.clock()))
        failures, zones_tried = _tried(account, replace(spec, options=allowed), attempt, image, progress)
        if not failures:
            return
        doing = f"create {counted(len(names), 'instance')} ({describe(cloud)})"
        diagnosis = account.diagnosis(failures, doing, attempt.location)
        if os_login.OPTION in (diagnosis.again or ()) and not cloud.os_login and account.api.account:
            cloud = _with_os_login(account, spec, cloud, progress)
            continue
        progress(attempt.location, diagnosis.message.removeprefix(f"{attempt.location} "))
        refusals[str(attempt)] = _with_request(diagnosis, cloud, len(names), account.api.project, region.name)
        if diagnosis.scope is Scope.EVERYTHING:
            raise diagnosis
        if diagnosis.scope is Scope.RETRY and retries < _RETRIES:
            retries += 1
            time.sleep(account.api.timing.longest_poll_s)
            continue
        retries = 0
        scope = Scope.ZONE if diagnosis.scope is Scope.RETRY else diagnosis.scope
        if scope is Scope.ZONE and attempt.regional:
            # Compute Engine chose one of several zones; it did not try the others.
            search = search.each_separately(region, zones_tried, diagnosis.zones)
        else:
            search = search.skip(region, scope, diagnosis.zones)
    if diagnosis is not None and len(refusals) <= 1:
        if pinned and diagnosis.kind is ErrorKind.CAPACITY:
            diagnosis.hint = f"the fleet is in {pinned[0]}, so only this zone was tried; --retry-until-up waits"
        raise diagnosis
    raise _exhausted(len(names), cloud, refusals)


def _with_os_login(account: Account, spec: FleetSpec, cloud: GceOptions, progress: Progress) -> GceOptions:
    """Import the fleet's key for OS Login; return the options of instances that use it."""
    account.logins[spec.name] = os_login.grant(account, spec, cloud)
    progress(account.api.project, f"OS Login is used: the login name is {account.logins[spec.name]}")
    return replace(cloud, os_login=True)


def _limited(
    account: Account, fleet: str, cloud: GceOptions, region: Region, count: int
) -> GceOptions | ProviderError:
    """Return the options of instances in a region, with the lifetime that the limit of the cost pays for there."""
    if not cloud.max_cost_usd:
        return cloud
    budget = current_budget(account, fleet, cloud)
    return limited(budget, cloud, dearest(account.prices, cloud, region.zones), count, account.clock())


def _excluded(account: Account, region: Region, zones_by_region: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the zones of a region that Compute Engine must not choose: not requested now, or they do not answer.

    In a zone that does not answer, instances could be created, but not listed.
    """
    silent = [zone for zone in sorted(account.silent) if is_zone(zone) and region_of(zone) == region.name]
    zones = dict.fromkeys((*zones_by_region.get(region.name, ()), *silent))
    return [zone for zone in zones if zone not in region.zones and not is_ai_zone(zone)]


def _with_request(diagnosis: Diagnosis, cloud: GceOptions, count: int, project: str, region: str) -> Diagnosis:
    """Return the diagnosis of an exhausted quota with the command that requests what `count` instances need."""
    needed = amount_of(diagnosis.metric, cloud, count)
    if needed:
        limit = needed if needed > diagnosis.limit else diagnosis.limit + needed
        region = "" if diagnosis.scope is Scope.EVERYTHING else region
        diagnosis.next_steps = [quota_request(diagnosis.metric, project, region, limit)]
    if diagnosis.metric.startswith("PREEMPTIBLE_") and is_temporary(cloud) and not cloud.max_cost_usd:
        diagnosis.hint = f"{diagnosis.hint}; or use {AS_STANDARD}"
        diagnosis.again = {"--max-duration": "8d", "--idle-timeout": "1h"}
    return diagnosis


def _exhausted(count: int, cloud: GceOptions, refusals: Mapping[str, ProviderError]) -> ProviderError:
    """Return the error that `count` instances cannot be created anywhere; `refusals` are by zone or region.

    Only a lack of capacity ends by itself: without one, the first quota that is too small is the reason.
    """
    short = [each for each in refusals.values() if each.kind is ErrorKind.QUOTA]
    cause = _listed({place: each.message.rpartition(": ")[2] for place, each in refusals.items()})
    if all(each.kind is not ErrorKind.CAPACITY for each in refusals.values()):
        first = next(iter(short or refusals.values()))
        first.cause = cause
        return first
    other = "allow other zones (--zone)" if cloud.zones or cloud.anywhere else "--anywhere tries all continents"
    error = ProviderError(
        ErrorKind.CAPACITY,
        f"no capacity for {counted(count, 'instance')} ({describe(cloud)}) in {len(refusals)} attempts",
        cause=cause,
        hint=f"--retry-until-up waits for capacity; {other}",
        again={"--retry-until-up": True},
    )
    for refusal in short[:1]:
        error.message += f", and {refusal.message.rpartition(': ')[2]}"
        error.hint, error.next_steps = f"{error.hint}; {refusal.hint}", refusal.next_steps
    return error


def _listed(reasons: Mapping[str, str]) -> str:
    """Return the locations with the reasons why they were left, those with the same reason together."""
    locations: dict[str, list[str]] = {}
    for location, reason in reasons.items():
        locations.setdefault(reason.removeprefix(f"{location.partition(' ')[0]} "), []).append(location)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in locations.items())


def _image(account: Account, spec: FleetSpec, cloud: GceOptions, progress: Progress) -> images.Choice:
    """Return the image that new instances boot from instead of that of their options, and report it."""
    image = images.find(account.api, spec, cloud, account.api.account if cloud.os_login else cloud.ssh_user)
    if image.note:
        progress(account.api.project, image.note)
    return image


def _tried(
    account: Account, spec: FleetSpec, attempt: Attempt, image: images.Choice, progress: Progress
) -> tuple[list[Failure], Collection[str]]:
    """Make one attempt with `image`, if there is one; if it cannot be used, with that of the options.

    Returns:
        As `insert` does.
    """
    if image.path:
        cloud = replace(GceOptions.of(spec.options), image=image.path)
        failures, tried = insert(account, replace(spec, options=cloud), attempt, progress)
        if not images.is_rejected(image.path, failures):
            return failures, tried
        diagnosis = account.diagnosis(failures, f"use image {last(image.path)}", attempt.location)
        progress(attempt.location, f"{diagnosis.message}; the packages are installed instead")
    return insert(account, spec, attempt, progress)
