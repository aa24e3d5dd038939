"""Determine why instances are gone or stopped, from the operations of Compute Engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from provision.gce.account import Account
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.labels import instance_name
from provision.gce.rest.resources import last, our_name, seconds

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
    lost = [name for name in names if name not in existing or existing[name].get("status") != "RUNNING"]
    if not lost:
        return {}
    ends = [operation for kind in _ENDS for operation in account.api.operations(f'operationType="{kind}"')]
    reasons = {}
    for name in lost:
        resource_name = instance_name(fleet, account.owner, name)
        mine = [operation for operation in ends if last(operation.get("targetLink", "")) == resource_name]
        if mine:
            reasons[name] = clause(max(mine, key=_at))
        elif name in existing:
            reasons[name] = f"is {existing[name].get('status', 'unknown').lower()}"
    return reasons


def _at(operation: Json) -> float:
    return seconds(operation.get("insertTime") or operation.get("startTime") or "")


def clause(operation: Json) -> str:
    """Return the effect of an operation on its instance as a clause: ``was preempted at 12:03:10``."""
    at = time.strftime("%H:%M:%S", time.localtime(_at(operation)))
    user = operation.get("user", "")
    kind = operation.get("operationType", "")
    if kind in _CLAUSES:
        return f"{_CLAUSES[kind]} at {at}"
    verb = "deleted" if kind == "delete" else "stopped"
    if user == _SYSTEM:
        return f"was {verb} by Compute Engine at {at}"
    return f"was {verb} at {at}" + (f" by {user}" if user else "")
