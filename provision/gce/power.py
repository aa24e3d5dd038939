"""Stop and start instances, change the end of their lifetime, and determine why they ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.cloud import compute_v1

from provision.gce.access.hosts import await_keys
from provision.gce.account import Account, separate_id
from provision.gce.api.client import ApiError, Call
from provision.gce.api.resources import (
    SCRATCH,
    deadlines,
    items_of,
    metadata,
    our_name,
    seconds,
    zone_of,
)
from provision.gce.catalog.gpus import FLEX_START
from provision.gce.catalog.machines import MAX_DURATION_MIN_S, resolved
from provision.gce.catalog.names import instance_name, last
from provision.gce.money import current_budget, longer_than_paid, unknown_price
from provision.gce.options import END_AT, MAX_DURATION_MAX_S, POWER_OFF_S, STOP_AT, GceOptions
from provision.model import Instance, Price
from provision.provider import ErrorKind, Progress, ProviderError

_ACTIVITY = "setting the stop time of the instances"


def stop_at(account: Account, targets: Sequence[compute_v1.Instance], at: int) -> bool:
    """Let running instances power off at a time; their startup script does it without this computer.

    Returns:
        True if every instance has confirmed the time, which is in seconds since the epoch by the cloud's clock.

    Raises:
        ApiError: a call failed.
    """
    set_items(account, targets, {STOP_AT: str(at)}, _ACTIVITY)
    return confirmed(account, targets, "stop-at", str(at))


def release(account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance]) -> None:
    """Let running instances power off only at the end of their lifetime, and correct that of Flex-start VMs.

    Raises:
        ApiError: a call failed.
    """
    ends = [items_of(resource).get(END_AT, "0") if cloud.powers_off else "0" for resource in targets]
    changes = [(each, {STOP_AT: end, **_queued_end(each)}) for each, end in zip(targets, ends, strict=True)]
    _change(account, changes, _ACTIVITY)


def correct_ends(account: Account, targets: Sequence[compute_v1.Instance]) -> None:
    """Let the lifetime of running Flex-start VMs begin with their start, not with the request that was queued.

    Raises:
        ApiError: a call failed.
    """
    _change(account, [(each, _queued_end(each)) for each in targets], _ACTIVITY)


def _queued_end(resource: compute_v1.Instance) -> dict[str, str]:
    """Return the metadata item with the end of the jobs of a Flex-start VM; empty for other instances."""
    delete_at = seconds(resource.resource_status.scheduling.termination_timestamp)
    if resource.scheduling.provisioning_model != FLEX_START or not delete_at:
        return {}
    lifetime_s = resource.scheduling.max_run_duration.seconds
    return {END_AT: str(round(delete_at) - min(POWER_OFF_S, lifetime_s // 4))}


def set_deadlines(account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance]) -> None:
    """Let the lifetime of instances begin now.

    Raises:
        ApiError: a call failed.
    """
    set_items(account, targets, deadlines(cloud, account.cloud_time()), _ACTIVITY)


def set_items(
    account: Account, targets: Sequence[compute_v1.Instance], values: Mapping[str, str], activity: str
) -> None:
    """Set metadata items of those instances that have other values; an empty value removes an item.

    Raises:
        ApiError: a call failed; `activity` names it in the message.
    """
    _change(account, [(resource, values) for resource in targets], activity)


def _change(
    account: Account, changes: Sequence[tuple[compute_v1.Instance, Mapping[str, str]]], activity: str
) -> None:
    """Set metadata items of instances, as `set_items` does, to values of their own."""
    calls = []
    for resource, values in changes:
        before = items_of(resource)
        items = {key: value for key, value in {**before, **values}.items() if value}
        if items != before:
            message = metadata(items, resource.metadata.fingerprint)
            calls.append(account.call(resource, "setMetadata", message))
    account.change(calls, activity)


def confirmed(account: Account, targets: Sequence[compute_v1.Instance], attribute: str, value: str) -> bool:
    """Wait until the startup script of every instance has published a value as a guest attribute.

    Returns:
        Whether all have done so in time.
    """
    left = list(targets)
    for _ in account.api.timing.polls(account.api.timing.confirm_s):
        answers = account.guest_attributes(left, "fleet")
        left = [each for each, answer in zip(left, answers, strict=True) if _published(answer, attribute) != value]
        if not left:
            break
    return not left


def _published(answer: compute_v1.GuestAttributes | ApiError, attribute: str) -> str:
    items = [] if isinstance(answer, ApiError) else answer.query_value.items
    return next((item.value for item in items if item.key == attribute), "")


def stop(account: Account, resources: Sequence[compute_v1.Instance], progress: Progress) -> list[compute_v1.Instance]:
    """Stop instances, and wait until they are stopped; they keep their disks, and cost only these.

    Those that have stopped are stopped, too: an operation of an interrupted command may be about to start them.
    A stop must discard the content of Local SSDs, which it ends: ``discardLocalSsd`` of instances.stop in the
    discovery document of the Compute Engine API.

    Returns:
        The instances as they are then.

    Raises:
        ApiError: an instance does not stop.
    """
    for resource in resources:
        if resource.status != "TERMINATED":
            progress(our_name(resource), "stopping")
    discards = [{"discardLocalSsd": "true"} if _has_local_ssds(resource) else {} for resource in resources]
    calls = [account.call(each, "stop", **query) for each, query in zip(resources, discards, strict=True)]
    account.change(calls, "stopping the instances")
    stopped = await_status(account, resources, "TERMINATED", "stopping the instances")
    for resource in stopped:
        progress(our_name(resource), "stopped")
    return stopped


def start_for(
    account: Account,
    cloud: GceOptions,
    resources: Sequence[compute_v1.Instance],
    price: Price | None,
    progress: Progress,
) -> None:
    """Start stopped instances of one fleet for a lifetime, with its intent on disk before the call.

    The time of ``maxRunDuration`` counts from each start, so the lifetime is set before.

    Args:
        account: The owner of the instances.
        cloud: Options with their new lifetime.
        resources: The instances; they are stopped.
        price: Price of each instance, which counts against ``--max-cost``; None if no limit is set.
        progress: Called for each instance.

    Raises:
        ApiError: the lifetime cannot be set, or an instance does not start.
    """
    if not resources:
        return
    lifetime_s = cloud.delete_after_s
    limits = [(resource, resource.scheduling.max_run_duration.seconds) for resource in resources]
    others = [resource for resource, seconds in limits if lifetime_s and seconds != lifetime_s]
    account.change([set_lifetime(account, resource, lifetime_s) for resource in others], "changing the deadline")
    for resource in resources:
        progress(our_name(resource), "starting again")
    set_deadlines(account, cloud, resources)  # otherwise an instance that stopped by itself would stop again
    fleet, intent = resources[0].labels["fleet"], _intent(resources, lifetime_s, price)
    with account.request(fleet, "start", **intent) as request:
        ids = [separate_id(request.id, name) for name in intent["names"]]
        calls = [account.call(each, "start", requestId=id_) for each, id_ in zip(resources, ids, strict=True)]
        account.change(calls, "starting the instances", at_once=False)
    for resource in resources:
        account.keys.pop(str(resource.id), None)


def _intent(resources: Sequence[compute_v1.Instance], lifetime_s: int, price: Price | None) -> dict[str, Any]:
    """Return the description of a start for the journal, with what the instances cost if the cost is limited."""
    intent = {
        "zones": sorted({zone_of(resource) for resource in resources}),
        "names": [resource.name for resource in resources],
        "separate": True,
        "workers": [our_name(resource) for resource in resources],
    }
    if price is None:
        return intent
    return {**intent, "lifetime_s": lifetime_s, "usd_h": price.usd_h, "stopped_usd_h": price.stopped_usd_h}


def stop_started(account: Account, resources: Sequence[compute_v1.Instance], progress: Progress) -> None:
    """Stop those of some instances that run, after not all of them could be started; ignore errors of the API."""
    with contextlib.suppress(ApiError):
        stop(account, account.existing(resources), progress)


def set_lifetime(account: Account, resource: compute_v1.Instance, seconds: int) -> Call:
    """Return the call that lets Compute Engine delete an instance this many seconds after its next start."""
    scheduling = compute_v1.Scheduling(resource.scheduling)
    scheduling.max_run_duration = compute_v1.Duration(seconds=seconds)
    scheduling.instance_termination_action = scheduling.instance_termination_action or "DELETE"
    return account.call(resource, "setScheduling", scheduling)


def await_status(
    account: Account, targets: Sequence[compute_v1.Instance], status: str, activity: str
) -> list[compute_v1.Instance]:
    """Wait until all of `targets` have a status, and return them as they are then.

    Raises:
        ApiError: it takes too long, or the API does not answer; `activity` is in the message.
    """
    current: list[compute_v1.Instance] = []

    def have_status() -> bool:
        current[:] = account.existing(targets)
        return all(each.status == status for each in current)

    account.api.until(have_status, activity)
    return current


def _has_local_ssds(resource: compute_v1.Instance) -> bool:
    return any(disk.type_ == SCRATCH for disk in resource.disks)


_BAD_REQUEST = 400


def with_lifetime(cloud: GceOptions, seconds: float) -> GceOptions:
    """Return the options of a fleet with another lifetime.

    Raises:
        ProviderError: it is too short or too long, or cannot be changed.
    """
    if not cloud.is_extendable:
        message = "the deletion time of Flex-start VMs cannot be changed: a stop gives up their capacity"
        hint = "set --max-duration, up to 7 days, when the fleet is created"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint)
    try:
        return resolved(replace(cloud, max_duration_s=max(1, round(seconds))))
    except ValueError as error:
        is_long = seconds > MAX_DURATION_MAX_S
        step = ("fleet", "extend", f"{MAX_DURATION_MAX_S // 86400}d") if is_long else ("fleet", "down")
        raise ProviderError(ErrorKind.USAGE, str(error), next_steps=[step]) from error


def check(account: Account, cloud: GceOptions, seconds: float, targets: Sequence[compute_v1.Instance]) -> str:
    """Check whether instances can have a new lifetime, which begins now; return a warning about its effect, or "".

    If it is too long for Compute Engine, the limit of the cost is checked first for the longest one, which the
    error suggests.

    Args:
        account: The owner of the fleet.
        cloud: Its options.
        seconds: The new lifetime.
        targets: All of its instances.

    Raises:
        ProviderError: they cannot have it, or the limit of the cost does not pay for it.
    """
    if seconds > MAX_DURATION_MAX_S:
        _check(account, with_lifetime(cloud, MAX_DURATION_MAX_S), targets)
    return _check(account, with_lifetime(cloud, seconds), targets)


def _check(account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance]) -> str:
    """Check whether the limit of the cost pays for the lifetime of `cloud`, and return the result of `check`."""
    if not targets or not needs_restart(cloud, account.convert(targets), account.clock()):
        return ""
    if cloud.max_cost_usd:
        _paid_s(account, cloud, targets, _price(account, cloud, targets), ending=True)
    lost = f"; then {cloud.lost_at_stop} is lost" if cloud.lost_at_stop else ""
    return f"Compute Engine may have to restart the instances{lost}"


def needs_restart(cloud: GceOptions, instances: Sequence[Instance], now: float) -> bool:
    """Return whether instances may have to be restarted for a new lifetime, which begins now.

    They need not if they power off before Compute Engine deletes them.

    Args:
        cloud: Their options, with the new lifetime.
        instances: The instances.
        now: Seconds since the epoch.
    """
    latest = now + cloud.stop_after_s + POWER_OFF_S
    return not cloud.stop_after_s or any(instance.delete_at < latest for instance in instances)


def extend(account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance], progress: Progress) -> None:
    """Let a new lifetime of the instances of a fleet begin now.

    According to the API reference, the time at which Compute Engine deletes instances is set only while they are
    stopped. They are restarted only if this time is too early and the API rejects the call for running ones, or if
    the cost of the fleet is limited.

    Args:
        account: The owner of the fleet.
        cloud: Its options, resolved, with the new lifetime.
        targets: All of its instances.
        progress: Called for each instance.

    Raises:
        ApiError: a call failed; the instances may be stopped then.
        ProviderError: the limit of the cost does not pay for this time, and nothing was changed; or an instance does
            not start again.
    """
    if not _check(account, cloud, targets):
        set_deadlines(account, cloud, targets)
        return
    price = _price(account, cloud, targets) if cloud.max_cost_usd else None
    if price is None:
        try:
            calls = [set_lifetime(account, resource, cloud.delete_after_s) for resource in targets]
            account.change(calls, "changing the deadline")
            set_deadlines(account, cloud, targets)
            return
        except ApiError as error:
            if error.status != _BAD_REQUEST:
                raise
    targets = stop(account, targets, progress)
    if not targets:  # Spot VMs may be preempted and deleted at the same time
        message = "the instances were deleted while they were being stopped for their new lifetime"
        raise ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])
    if price is not None:
        cloud = replace(cloud, max_duration_s=_paid_s(account, cloud, targets, price))
    start_for(account, cloud, targets, price, progress)
    await_keys(account, await_status(account, targets, "RUNNING", "starting the instances"), progress)


def _price(account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance]) -> Price:
    price = account.prices.price(cloud, zone_of(targets[0]))
    if price is None:
        raise unknown_price(cloud, is_new=False)
    return price


def _paid_s(
    account: Account, cloud: GceOptions, targets: Sequence[compute_v1.Instance], price: Price, *, ending: bool = False
) -> int:
    """Return the lifetime, at most that of `cloud`, that the limit of the cost pays for.

    Before the instances are stopped (`ending`), it must pay for all of it. The stop may take longer than expected.

    Raises:
        ProviderError: it does not pay for this time.
    """
    fleet, seconds = targets[0].labels["fleet"], cloud.max_duration_s
    budget = current_budget(account, fleet, cloud, ending=ending)
    paid_s = int(budget.lifetime_s(price, len(targets), account.clock()))
    if paid_s < (seconds if ending else MAX_DURATION_MIN_S):
        raise longer_than_paid(budget, price, len(targets), seconds, paid_s)
    return min(seconds, paid_s)


PREEMPTED = "compute.instances.preempted"
_CLAUSES = {
    PREEMPTED: "was preempted",
    "compute.instances.guestTerminate": "powered off",
    "compute.instances.hostError": "was stopped by an error of its machine",
    "compute.instances.terminateOnHostMaintenance": "was stopped for maintenance of its machine",
}
"""Operations of the system, from https://cloud.google.com/compute/docs/logging/audit-logging#system_event."""
_ENDS = (*_CLAUSES, "delete", "stop")
_SYSTEM = "system"


def termination_reasons(account: Account, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
    """Return the known reasons why the instances `names` of a fleet are gone or stopped, each as a clause.

    Raises:
        ApiError: a call failed.
    """
    existing = {our_name(resource): resource for resource in account.resources(fleet)}
    lost = [name for name in names if name not in existing or existing[name].status != "RUNNING"]
    if not lost:
        return {}
    ends = [operation for kind in _ENDS for operation in account.api.operations(f'operationType="{kind}"')]
    reasons = {}
    for name in lost:
        resource_name = instance_name(fleet, account.owner, name)
        mine = [operation for operation in ends if last(operation.target_link) == resource_name]
        if mine:
            reasons[name] = clause(max(mine, key=_at))
        elif name in existing:
            reasons[name] = f"is {existing[name].status.lower()}"
    return reasons


def _at(operation: compute_v1.Operation) -> float:
    return seconds(operation.insert_time or operation.start_time)


def clause(operation: compute_v1.Operation) -> str:
    """Return the effect of an operation on its instance as a clause: ``was preempted at 12:03:10``."""
    at = time.strftime("%H:%M:%S", time.localtime(_at(operation)))
    user, kind = operation.user, operation.operation_type
    if kind in _CLAUSES:
        return f"{_CLAUSES[kind]} at {at}"
    verb = "deleted" if kind == "delete" else "stopped"
    if user == _SYSTEM:
        return f"was {verb} by Compute Engine at {at}"
    return f"was {verb} at {at}" + (f" by {user}" if user else "")
