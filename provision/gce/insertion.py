"""Make one attempt to create all instances in a zone or region: by one request, or queued one by one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.gce.account import IN_DOUBT, Account, separate_id
from provision.gce.deletion import delete_instances, delete_unused_disks
from provision.gce.diagnosis.failures import Failure, from_operation
from provision.gce.limit import dearest
from provision.gce.options import GceOptions
from provision.gce.rest.api import ApiError, Json, answer_failures
from provision.gce.rest.batch import Call
from provision.gce.rest.bodies.bulk import bulk_insert
from provision.gce.rest.bodies.placement import placement_policy
from provision.gce.rest.bodies.single import single_inserts
from provision.gce.rest.resources import created_count, last, place_of, zone_of, zones_tried
from provision.gce.zones import Region
from provision.model import FleetSpec
from provision.provider import Progress
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
    body = placement_policy(spec, account.owner, account.user)
    existing = account.api.resource_policies() if body["name"] else ()
    if not body["name"] or (region, body["name"]) in {(last(each["region"]), each["name"]) for each in existing}:
        return
    with account.request(spec.name, "insert", policy=body["name"], region=region) as request:
        account.api.done(account.api.insert_policy(region, body, request.id), "creating the placement policy")


def _insert_together(account: Account, spec: FleetSpec, attempt: Attempt) -> Json:
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
        operation = account.api.bulk_insert(attempt.location, body, request.id, regional=attempt.regional)
        request.created = None
        operation = account.api.wait(operation, f"creating instances in {attempt}")
        request.created = created_count(operation)
    return operation


def _child_failures(account: Account, operation: Json) -> list[Failure]:
    """Return the failures of the operations for single instances that a bulk insert started."""
    if not operation.get("operationGroupId"):
        return []
    group = account.api.operations(f'operationGroupId="{operation["operationGroupId"]}"')
    return [failure for child in group if child["name"] != operation["name"] for failure in from_operation(child)]


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
                Call("POST", account.api.path(*words, requestId=separate_id(request.id, body["name"])), body)
                for body in bodies
            ]
        )
        refused = [failure for answer in answers for failure in answer_failures(answer)]
        if any(answer.status in IN_DOUBT for answer in answers):
            raise ApiError(refused)
        begun = [answer.body for answer in answers if answer.status < 400]
        wait = _Wait(account, attempt, GceOptions.of(spec.options).wait_s, progress)
        ended = wait.until_settled(begun, failed=bool(refused))
        request.created = sum("error" not in operation for operation in ended)
    return refused + [failure for operation in ended for failure in from_operation(operation)]


@dataclass
class _Wait:
    """A wait for capacity.

    Attributes:
        account: The owner of the instances.
        attempt: The attempt to create them.
        queue_s: Time for which Compute Engine queues them.
        progress: Called when the number of instances that wait changes.
    """

    account: Account
    attempt: Attempt
    queue_s: int
    progress: Progress

    def until_settled(self, begun: Sequence[Json], *, failed: bool) -> list[Json]:
        """Wait until all instances run; after the first failure, only until the others run or are listed as queued.

        Args:
            begun: The operations of the instances.
            failed: Whether there is a failure already.

        Returns:
            The operations that have ended.

        Raises:
            ApiError: it takes too long.
        """
        operations = {operation["name"]: operation for operation in begun}
        until = time.strftime("%H:%M", time.localtime(self.account.clock() + self.queue_s))
        shown = 0

        def is_settled() -> bool:
            nonlocal shown
            listed = self.account.api.operations('operationType="insert"')
            operations.update({each["name"]: each for each in listed if each["name"] in operations})
            left = [each for each in operations.values() if each.get("status") != "DONE"]
            if not left or not self.queue_s:
                return not left
            queued = self.account.queued()
            waiting = sum(place_of(str(each.get("targetLink", ""))) in queued for each in left)
            if waiting not in (0, shown):
                shown = waiting
                text = f"{counted(waiting, 'instance')} of {len(self.attempt.names)} in the queue until {until}"
                self.progress(self.attempt.location, text)
            has_failed = failed or any("error" in each for each in operations.values())
            return has_failed and waiting == len(left)

        self.account.api.until(is_settled, f"creating instances in {self.attempt}", extra_s=self.queue_s)
        return [each for each in operations.values() if each.get("status") == "DONE"]


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
        running = [resource for resource in made if resource.get("status") == "RUNNING"]
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
