"""Create instances on Compute Engine, all in one zone; try zones in order until one has capacity."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud import compute_v1

from provision.gce import images
from provision.gce.access import os_login
from provision.gce.access.firewall import open_firewall
from provision.gce.access.host_keys import await_keys
from provision.gce.account import IN_DOUBT, Account, separate_id
from provision.gce.api.batch import Call
from provision.gce.api.messages import ApiError, from_json, from_operation, is_done, to_json
from provision.gce.api.requests import bulk_insert, placement_policy, single_inserts
from provision.gce.api.resources import created_count, our_name, place_of, state_of, zone_of, zones_tried
from provision.gce.catalog.machines import FLEX_WAIT_MIN_S, describe
from provision.gce.catalog.names import instance_name, is_ai_zone, is_zone, last, region_of
from provision.gce.delete import delete_instances, delete_unused_disks
from provision.gce.diagnosis import Diagnosis, Failure, Scope, quota_request
from provision.gce.money import check_ends, current_budget, dearest, limited
from provision.gce.options import GceOptions
from provision.gce.power import correct_ends, prevent_restarts, start_for, stop_started
from provision.gce.quota import AS_STANDARD, amount_of, is_temporary
from provision.gce.zones import Region, Search, offered, regions_to_try
from provision.model import FleetSpec, InstanceState
from provision.provider import ErrorKind, Progress, ProviderError
from provision.quantities import counted


@dataclass(frozen=True)
class Attempt:
    """One attempt to create instances in a zone or a region.

    Attributes:
        region: The zones.
        names: Names on Compute Engine by the names within the fleet.
        others: Zones of the region that have such machines, but must not be used.
    """

    region: Region
    names: Mapping[str, str]
    others: Sequence[str] = ()

    @property
    def regional(self) -> bool:
        """Return whether Compute Engine chooses the zone."""
        return len(self.region.zones) > 1

    @property
    def location(self) -> str:
        """Return the zone or region."""
        return self.region.name if self.regional else self.region.zones[0]

    def __str__(self) -> str:
        return f"{self.region.name} ({', '.join(self.region.zones)})" if self.regional else self.location


def insert(
    account: Account, spec: FleetSpec, attempt: Attempt, progress: Progress
) -> tuple[list[Failure], Collection[str]]:
    """Make one attempt.

    Returns:
        The failures (if there are any, all instances of the attempt are deleted), and the zones in which Compute
        Engine reports that it tried to create the instances.
    """
    tried: Collection[str] = ()
    try:
        _create_policy(account, spec, attempt.region.name)
        if GceOptions.of(spec.options).flex_start:
            failures = _insert_separately(account, spec, attempt, progress)
        else:
            operation = _insert_together(account, spec, attempt)
            failures, tried = from_operation(operation), zones_tried(operation)
            if failures:
                failures += _child_failures(account, operation)
    except ApiError as error:
        failures = list(error.failures)
    return _reconciled(account, spec, attempt, failures, progress), tried


def _create_policy(account: Account, spec: FleetSpec, region: str) -> None:
    """Create the placement policy of a fleet in a region, if it needs one that does not exist.

    Raises:
        ApiError: a call failed.
    """
    policy = placement_policy(spec, account.owner, account.user)
    existing = account.api.resource_policies() if policy.name else ()
    if not policy.name or (region, policy.name) in {(last(each.region), each.name) for each in existing}:
        return
    with account.request(spec.name, "insert", policy=policy.name, region=region) as request:
        operation = account.api.create(("regions", region, "resourcePolicies"), policy, request.id)
        account.api.done(operation, "creating the placement policy")


def _insert_together(account: Account, spec: FleetSpec, attempt: Attempt) -> compute_v1.Operation:
    """Create the instances by one request, and return its operation, which is done.

    Raises:
        ApiError: the call failed, or takes too long.
    """
    body = bulk_insert(
        spec,
        attempt.names,
        owner=account.owner,
        user=account.user,
        zones=attempt.region.zones if attempt.regional else None,
        others=attempt.others,
        region=attempt.region.name,
        now=account.cloud_time(),
    )
    with account.request(spec.name, "bulkInsert", **_intent(account, spec, attempt)) as request:
        request.created = 0  # if the call is rejected
        scope = "regions" if attempt.regional else "zones"
        operation = account.api.create((scope, attempt.location, "instances", "bulkInsert"), body, request.id)
        request.created = None
        operation = account.api.wait(operation, f"creating instances in {attempt}")
        request.created = created_count(operation)
    return operation


def _child_failures(account: Account, operation: compute_v1.Operation) -> list[Failure]:
    """Return the failures of the operations for single instances that a bulk insert started."""
    if not operation.operation_group_id:
        return []
    group = account.api.operations(f'operationGroupId="{operation.operation_group_id}"')
    return [failure for child in group if child.name != operation.name for failure in from_operation(child)]


def _insert_separately(account: Account, spec: FleetSpec, attempt: Attempt, progress: Progress) -> list[Failure]:
    """Create the instances in a zone one by one, each of which may wait for capacity; return the failures.

    Raises:
        ApiError: a call failed, or takes too long; instances may wait for capacity then.
    """
    bodies = single_inserts(
        spec,
        attempt.names.values(),
        owner=account.owner,
        user=account.user,
        project=account.api.project,
        zone=attempt.location,
        now=account.cloud_time(),
    )
    with account.request(spec.name, "insert", **_intent(account, spec, attempt)) as request:
        words = ("zones", attempt.location, "instances")
        answers = account.api.batch(
            [
                Call("POST", account.api.path(*words, requestId=separate_id(request.id, body.name)), to_json(body))
                for body in bodies
            ]
        )
        refused = [failure for answer in answers for failure in answer.failures]
        if any(answer.status in IN_DOUBT for answer in answers):
            raise ApiError(refused)
        begun = [from_json(compute_v1.Operation, answer.body) for answer in answers if answer.status < 400]
        queue_s = GceOptions.of(spec.options).wait_s
        ended = _settled(account, attempt, begun, queue_s, progress, failed=bool(refused))
        request.created = sum(not operation.error.errors for operation in ended)
    return refused + [failure for operation in ended for failure in from_operation(operation)]


def _settled(
    account: Account,
    attempt: Attempt,
    begun: Sequence[compute_v1.Operation],
    queue_s: int,
    progress: Progress,
    *,
    failed: bool,
) -> list[compute_v1.Operation]:
    """Wait until all instances run; after the first failure, only until the others run or are listed as queued.

    Args:
        account: The owner of the instances.
        attempt: The attempt to create them.
        begun: The operations of the instances.
        queue_s: Time for which Compute Engine queues them.
        progress: Called when the number of instances that wait changes.
        failed: Whether there is a failure already.

    Returns:
        The operations that have ended.

    Raises:
        ApiError: it takes too long.
    """
    operations = {operation.name: operation for operation in begun}
    until = time.strftime("%H:%M", time.localtime(account.clock() + queue_s))
    shown = 0

    def is_settled() -> bool:
        nonlocal shown
        listed = account.api.operations('operationType="insert"')
        operations.update({each.name: each for each in listed if each.name in operations})
        left = [each for each in operations.values() if not is_done(each)]
        if not left or not queue_s:
            return not left
        queued = account.queued()
        waiting = sum(place_of(each.target_link) in queued for each in left)
        if waiting not in (0, shown):
            shown = waiting
            text = f"{counted(waiting, 'instance')} of {len(attempt.names)} in the queue until {until}"
            progress(attempt.location, text)
        has_failed = failed or any(each.error.errors for each in operations.values())
        return has_failed and waiting == len(left)

    account.api.until(is_settled, f"creating instances in {attempt}", extra_s=queue_s)
    return [each for each in operations.values() if is_done(each)]


def _intent(account: Account, spec: FleetSpec, attempt: Attempt) -> dict[str, Any]:
    """Return the description of an attempt for the journal, with what its instances cost if the cost is limited."""
    cloud = GceOptions.of(spec.options)
    zones = list(attempt.region.zones)
    intent = {
        "location": attempt.location,
        "zones": zones,
        "names": list(attempt.names.values()),
        "separate": cloud.flex_start,
    }
    price = dearest(account.prices, cloud, zones)
    if not cloud.max_cost_usd or price is None:
        return intent
    prices = {"usd_h": price.usd_h, "stopped_usd_h": price.stopped_usd_h}
    return {**intent, "workers": list(attempt.names), "lifetime_s": cloud.delete_after_s, **prices}


def _reconciled(
    account: Account, spec: FleetSpec, attempt: Attempt, failures: list[Failure], progress: Progress
) -> list[Failure]:
    """Compare an attempt with the list of instances: return no failures if all exist, else delete those that do."""
    account.settle(spec.name)
    existing = account.named(spec.name)
    made = [existing[name] for name in attempt.names if name in existing]
    zones = {zone_of(resource) for resource in made}
    if len(made) == len(attempt.names) and len(zones) == 1:
        running = [resource for resource in made if resource.status == "RUNNING"]
        if len(running) == len(made) or not failures:
            return []
    if made:
        account.observe(spec.name)  # they cost something, too
        delete_instances(account, made, progress)
    if any(failure.of_operation for failure in failures):
        with contextlib.suppress(ApiError):  # `fleet down` deletes them, too
            delete_unused_disks(account, spec.name, set(attempt.names.values()))
    return failures or [
        Failure(code="MISSING", message=f"{len(made)} of {counted(len(attempt.names), 'instance')} exist")
    ]


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
    stopped = [existing[name] for name in names if name in existing and existing[name].status != "RUNNING"]
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


def _at_rest(account: Account, fleet: str) -> dict[str, compute_v1.Instance]:
    """Return the instances of a fleet by name when none restarts any more: their disks may have files.

    Raises:
        ApiError: a restart takes too long.
    """
    existing: dict[str, compute_v1.Instance] = {}

    def is_at_rest() -> bool:
        existing.clear()
        existing.update(account.named(fleet))
        return all(state_of(resource) is not InstanceState.RESTARTING for resource in existing.values())

    account.api.until(is_at_rest, "the restart of instances")
    return existing


# --- instances ----------------------------------------------------------------------------------------------------


def _start(
    account: Account,
    fleet: str,
    cloud: GceOptions,
    stopped: Sequence[compute_v1.Instance],
    count: int,
    progress: Progress,
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
