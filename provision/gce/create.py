"""Create instances on Compute Engine, all in one zone; try zones in order until one has capacity."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud import compute_v1

from provision.gce import images
from provision.gce.access import accounts
from provision.gce.access.hosts import await_keys
from provision.gce.access.networks import open_firewall
from provision.gce.account import IN_DOUBT, Account, require_success, separate_id
from provision.gce.api.client import ApiError, Call, from_operation, is_done, to_json
from provision.gce.api.resources import (
    bulk_insert,
    created_count,
    our_name,
    place_of,
    placement_policy,
    single_inserts,
    state_of,
    zone_of,
)
from provision.gce.catalog.machines import FLEX_WAIT_MIN_S, describe
from provision.gce.catalog.names import Fleet, instance_name, last, region_of
from provision.gce.delete import delete_instances, delete_unused_disks
from provision.gce.diagnosis import Diagnosis, Failure, Scope, quota_request
from provision.gce.money import current_budget, limited
from provision.gce.power import correct_ends, start_for, stop_started
from provision.gce.quota import AS_STANDARD, amount_of, is_temporary
from provision.gce.zones import offered, remaining, zones_to_try
from provision.model import InstanceState
from provision.provider import ErrorKind, Progress, ProviderError
from provision.quantities import counted

_RETRIES = 3


def create(account: Account, fleet: Fleet, names: Sequence[str], progress: Progress) -> None:
    """Create the instances `names`, start stopped ones, and wait until each has published its host key.

    Raises:
        ApiError: a call failed.
        ProviderError: no zone has capacity; instances that were created on the way are deleted.
    """
    existing = _at_rest(account, fleet.name)
    half_made = (InstanceState.QUEUED, InstanceState.STARTING)
    half = [resource for name, resource in existing.items() if name in names and state_of(resource) in half_made]
    delete_instances(account, half, progress)
    for resource in half:
        del existing[our_name(resource)]
    access = open_firewall(account, fleet)
    if access.note:
        progress(account.host_project or account.api.project, access.note)
    stopped = [existing[name] for name in names if name in existing and existing[name].status != "RUNNING"]
    missing = {name: instance_name(fleet.name, account.owner, name) for name in names if name not in existing}
    if stopped:
        _start(account, fleet, stopped, len(missing), progress)
    if missing:
        if accounts.uses_os_login(fleet.cloud, account.api.get_project()):
            fleet = _with_os_login(account, fleet, progress)
        pinned = sorted({zone_of(resource) for resource in existing.values()})
        _insert(account, fleet, missing, pinned, progress)
    made = account.named(fleet.name)
    if fleet.cloud.flex_start:
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


def _start(
    account: Account, fleet: Fleet, stopped: Sequence[compute_v1.Instance], count: int, progress: Progress
) -> None:
    """Start stopped instances again, all or none; they and `count` others live on what the limit of the cost leaves.

    Raises:
        ProviderError: an instance does not start, or the limit of the cost does not pay for them.
    """
    cloud, zone, price = fleet.cloud, zone_of(stopped[0]), None
    allowed = cloud
    if cloud.max_cost_usd:
        price = account.prices.price(cloud, zone)
        budget = current_budget(account, fleet.name, cloud)
        allowed = limited(budget, cloud, price, len(stopped) + count, account.clock())
    if cloud.delete_after_s:
        accounts.extend_key(account, fleet.name, cloud.delete_after_s)
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
    account: Account, fleet: Fleet, names: Mapping[str, str], pinned: Sequence[str], progress: Progress
) -> None:
    """Create instances where there is capacity; otherwise let requests for Flex-start VMs wait for it.

    The arguments are those of `_search`.
    """
    try:
        _search(account, fleet.changed(wait_s=0), names, pinned, progress)
    except ProviderError as error:
        if not fleet.cloud.flex_start or error.kind is not ErrorKind.CAPACITY:
            raise
        if not fleet.cloud.wait_s:
            error.hint = "--wait queues the request until there is capacity"
            error.again = {"--wait": "2h"}
            raise
        _search(account, fleet, names, pinned, progress)


def _search(
    account: Account, fleet: Fleet, names: Mapping[str, str], pinned: Sequence[str], progress: Progress
) -> None:
    """Request all instances in one zone after another, until one has capacity.

    Args:
        account: The owner of the fleet.
        fleet: The fleet.
        names: Names on Compute Engine by the names within the fleet.
        pinned: Zones of the fleet's other instances; if there are any, only the first is tried.
        progress: Called for each attempt.
    """
    cloud, count, until = fleet.cloud, len(names), account.clock() + fleet.cloud.wait_s
    image = images.find(account.api, fleet, account.api.account if cloud.os_login else cloud.ssh_user)
    if image.note:
        progress(account.api.project, image.note)
    zones = offered(account, fleet, pinned, is_baked=bool(image.path))
    zones = zones_to_try(account, cloud, zones, pinned, count)
    refusals: dict[str, ProviderError] = {}
    diagnosis: ProviderError | None = None
    retries = 0
    while zones:
        zone = zones[0]
        try:
            max_duration_s = _paid_s(account, fleet, zone, count)
        except ProviderError as error:
            diagnosis, zones = diagnosis or error, remaining(zones, zone, Scope.ZONE)
            continue
        progress(zone, f"requesting {counted(count, 'instance')}")
        left_s = until - account.clock()
        wait_s = int(left_s) if left_s >= FLEX_WAIT_MIN_S else 0  # Compute Engine accepts no shorter time
        attempt = Attempt(account, fleet.changed(max_duration_s=max_duration_s, wait_s=wait_s), zone, names, progress)
        failures = attempt.make_with(image)
        if not failures:
            return
        diagnosis = account.diagnosis(failures, f"create {counted(count, 'instance')} ({describe(cloud)})", zone)
        if accounts.OS_LOGIN in (diagnosis.again or ()) and not fleet.cloud.os_login and account.api.account:
            fleet = _with_os_login(account, fleet, progress)
            continue
        progress(zone, diagnosis.message.removeprefix(f"{zone} "))
        refusals[zone] = _with_request(diagnosis, fleet, count, account.api.project, region_of(zone))
        if diagnosis.scope is Scope.EVERYTHING:
            raise diagnosis
        retries += diagnosis.scope is Scope.RETRY
        if diagnosis.scope is Scope.RETRY and retries <= _RETRIES:
            time.sleep(account.api.timing.longest_poll_s)
            continue
        retries = 0
        scope = Scope.ZONE if diagnosis.scope is Scope.RETRY else diagnosis.scope
        zones = remaining(zones, zone, scope, diagnosis.zones)
    if diagnosis is not None and len(refusals) <= 1:
        if pinned and diagnosis.kind is ErrorKind.CAPACITY:
            diagnosis.hint = f"the fleet is in {pinned[0]}, so only this zone was tried; --retry-until-up waits"
        raise diagnosis
    raise _exhausted(count, fleet, refusals)


def _with_os_login(account: Account, fleet: Fleet, progress: Progress) -> Fleet:
    """Import the fleet's key for OS Login; return the fleet with options of instances that use it."""
    account.logins[fleet.name] = accounts.import_key(account, fleet)
    progress(account.api.project, f"OS Login is used: the login name is {account.logins[fleet.name]}")
    return fleet.changed(os_login=True)


def _paid_s(account: Account, fleet: Fleet, zone: str, count: int) -> int:
    """Return the lifetime of instances in a zone, at most that of the options, that the limit of the cost pays for.

    Raises:
        ProviderError: it does not pay for them.
    """
    cloud = fleet.cloud
    if not cloud.max_cost_usd:
        return cloud.max_duration_s
    budget = current_budget(account, fleet.name, cloud)
    return limited(budget, cloud, account.prices.price(cloud, zone), count, account.clock()).max_duration_s


def _with_request(diagnosis: Diagnosis, fleet: Fleet, count: int, project: str, region: str) -> Diagnosis:
    """Return the diagnosis of an exhausted quota with the command that requests what `count` instances need."""
    cloud, needed = fleet.cloud, amount_of(diagnosis.metric, fleet.cloud, count)
    if needed:
        limit = needed if needed > diagnosis.limit else diagnosis.limit + needed
        region = "" if diagnosis.scope is Scope.EVERYTHING else region
        diagnosis.next_steps = [quota_request(diagnosis.metric, project, region, limit)]
    if diagnosis.metric.startswith("PREEMPTIBLE_") and is_temporary(cloud) and not cloud.max_cost_usd:
        diagnosis.hint = f"{diagnosis.hint}; or use {AS_STANDARD}"
        diagnosis.again = {"--max-duration": "8d", "--idle-timeout": "1h"}
    return diagnosis


def _exhausted(count: int, fleet: Fleet, refusals: Mapping[str, ProviderError]) -> ProviderError:
    """Return the error that `count` instances cannot be created anywhere; `refusals` are by zone.

    Only a lack of capacity ends by itself: without one, the first quota that is too small is the reason.
    """
    short = [each for each in refusals.values() if each.kind is ErrorKind.QUOTA]
    zones: dict[str, list[str]] = {}
    for zone, each in refusals.items():
        reason = each.message.rpartition(": ")[2].removeprefix(f"{zone} ")
        zones.setdefault(reason, []).append(zone)
    cause = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in zones.items())
    if all(each.kind is not ErrorKind.CAPACITY for each in refusals.values()):
        first = next(iter(short or refusals.values()))
        first.cause = cause
        return first
    is_limited = not fleet.cloud.zones and not fleet.cloud.anywhere
    other = "--anywhere tries all continents" if is_limited else "allow other zones (--zone)"
    error = ProviderError(
        ErrorKind.CAPACITY,
        f"no capacity for {counted(count, 'instance')} ({describe(fleet.cloud)}) in {len(refusals)} attempts",
        cause=cause,
        hint=f"--retry-until-up waits for capacity; {other}",
        again={"--retry-until-up": True},
    )
    for refusal in short[:1]:
        error.message += f", and {refusal.message.rpartition(': ')[2]}"
        error.hint, error.next_steps = f"{error.hint}; {refusal.hint}", refusal.next_steps
    return error


@dataclass(frozen=True)
class Attempt:
    """One attempt to create instances in a zone, all of them or none.

    Attributes:
        account: The owner of the fleet.
        fleet: The fleet.
        zone: The zone.
        names: Names on Compute Engine by the names within the fleet.
        progress: Called for each step.
    """

    account: Account
    fleet: Fleet
    zone: str
    names: Mapping[str, str]
    progress: Progress

    def make_with(self, image: images.Choice) -> list[Failure]:
        """Make the attempt with `image`, if there is one; if it cannot be used, with that of the options.

        Returns:
            The failures; if there are any, all instances of the attempt are deleted.
        """
        if image.path:
            failures = replace(self, fleet=self.fleet.changed(image=image.path)).make()
            if not images.is_rejected(image.path, failures):
                return failures
            diagnosis = self.account.diagnosis(failures, f"use image {last(image.path)}", self.zone)
            self.progress(self.zone, f"{diagnosis.message}; the packages are installed instead")
        return self.make()

    def make(self) -> list[Failure]:
        """Make the attempt, and return its failures; if there are any, all of its instances are deleted."""
        try:
            self._create_policy()
            failures = self._insert_separately() if self.fleet.cloud.flex_start else self._insert_together()
        except ApiError as error:
            failures = list(error.failures)
        return self._reconciled(failures)

    def _create_policy(self) -> None:
        """Create the placement policy of the fleet in the region, if it needs one that does not exist.

        Raises:
            ApiError: a call failed.
        """
        api, policy, region = self.account.api, placement_policy(self.fleet), region_of(self.zone)
        existing = api.resource_policies() if policy.name else ()
        if not policy.name or (region, policy.name) in {(last(each.region), each.name) for each in existing}:
            return
        with self.account.request(self.fleet.name, "insert", policy=policy.name, region=region) as request:
            operation = api.create(("regions", region, "resourcePolicies"), policy, request.id)
            request.is_accepted = True
            api.done(operation, "creating the placement policy")

    def _insert_together(self) -> list[Failure]:
        """Create the instances by one request; return its failures, with those for single instances.

        Raises:
            ApiError: the call failed, or takes too long.
        """
        api = self.account.api
        body = bulk_insert(self.fleet, self.names.values(), self.zone, self.account.cloud_time())
        with self.account.request(self.fleet.name, "bulkInsert", **self._intent()) as request:
            request.created = 0  # if the call is rejected
            operation = api.create(("zones", self.zone, "instances", "bulkInsert"), body, request.id)
            request.created, request.is_accepted = None, True
            operation = api.wait(operation, f"creating instances in {self.zone}")
            request.created = created_count(operation)
        failures = from_operation(operation)
        if failures and operation.operation_group_id:
            group = api.operations(f'operationGroupId="{operation.operation_group_id}"')
            failures += [each for child in group if child.name != operation.name for each in from_operation(child)]
        return failures

    def _insert_separately(self) -> list[Failure]:
        """Create the instances one by one, each of which may wait for capacity; return the failures.

        Raises:
            ApiError: a call failed, or takes too long; instances may wait for capacity then.
        """
        api, now = self.account.api, self.account.cloud_time()
        bodies = single_inserts(self.fleet, self.names.values(), self.zone, now, api.project)
        with self.account.request(self.fleet.name, "insert", **self._intent()) as request:
            words = ("zones", self.zone, "instances")
            paths = [api.path(*words, requestId=separate_id(request.id, body.name)) for body in bodies]
            calls = [Call("POST", path, to_json(body)) for path, body in zip(paths, bodies, strict=True)]
            errors, begun = self.account.begun(api.each(calls, at_once=False))
            require_success([error for error in errors if error.status in IN_DOUBT])
            request.is_accepted = bool(begun)
            ended = self._settled(begun, failed=bool(errors))
            request.created = sum(not operation.error.errors for operation in ended)
        refused = [failure for error in errors for failure in error.failures]
        return refused + [failure for operation in ended for failure in from_operation(operation)]

    def _settled(self, begun: Sequence[compute_v1.Operation], *, failed: bool) -> list[compute_v1.Operation]:
        """Wait until all instances run; after a failure, only until the others run or are listed as queued.

        Args:
            begun: The operations of the instances.
            failed: Whether there is a failure already.

        Returns:
            The operations that have ended.

        Raises:
            ApiError: it takes too long.
        """
        account, queue_s = self.account, self.fleet.cloud.wait_s
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
                text = f"{counted(waiting, 'instance')} of {len(self.names)} in the queue until {until}"
                self.progress(self.zone, text)
            has_failed = failed or any(each.error.errors for each in operations.values())
            return has_failed and waiting == len(left)

        account.api.until(is_settled, f"creating instances in {self.zone}", extra_s=queue_s)
        return [each for each in operations.values() if is_done(each)]

    def _intent(self) -> dict[str, Any]:
        """Return the description of the attempt for the journal, with the costs of its instances if limited."""
        cloud = self.fleet.cloud
        intent = {
            "location": self.zone,
            "zones": [self.zone],
            "names": list(self.names.values()),
            "separate": cloud.flex_start,
        }
        price = self.account.prices.price(cloud, self.zone)
        if not cloud.max_cost_usd or price is None:
            return intent
        prices = {"usd_h": price.usd_h, "stopped_usd_h": price.stopped_usd_h}
        return {**intent, "workers": list(self.names), "lifetime_s": cloud.delete_after_s, **prices}

    def _reconciled(self, failures: list[Failure]) -> list[Failure]:
        """Compare with the list of instances: return no failures if all exist, else delete those that do."""
        account, fleet, count = self.account, self.fleet.name, len(self.names)
        account.settle(fleet)
        existing = account.named(fleet)
        made = [existing[name] for name in self.names if name in existing]
        is_complete = len(made) == count and len({zone_of(resource) for resource in made}) == 1
        if is_complete and (not failures or all(resource.status == "RUNNING" for resource in made)):
            return []
        if made:
            account.observe(fleet)  # they cost something, too
            delete_instances(account, made, self.progress)
        if any(failure.of_operation for failure in failures):
            with contextlib.suppress(ApiError):  # `fleet down` deletes them, too
                delete_unused_disks(account, fleet, set(self.names.values()))
        return failures or [Failure(code="MISSING", message=f"{len(made)} of {counted(count, 'instance')} exist")]
