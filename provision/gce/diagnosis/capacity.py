"""Diagnoses of zones that cannot create instances at this time."""

from __future__ import annotations

from dataclasses import replace

from provision.gce.diagnosis.cases import UNAUTHORIZED, Diagnose, Rule, Scope
from provision.gce.diagnosis.transient import RATE
from provision.provider import ErrorKind

_WAIT = "--retry-until-up waits for capacity; or allow other zones (--zone), or another --gpu"
_RETRY = {"--retry-until-up": True}

STOCKOUTS: tuple[Diagnose, ...] = (
    Rule(
        ErrorKind.CAPACITY,
        "{c.here} has no capacity {c.capacity}",
        codes={
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "RESOURCE_POOL_EXHAUSTED",
            "insufficientCapacity",
            "resource_availability",
            "stockout",
        },
        text=r"does not have enough resources available|STOCKOUT|is currently unavailable in the",
        scope=Scope.ZONE,
        cause="{c.localized}",
        hint=_WAIT,
        again=_RETRY,
    ),
)

ZONES: tuple[Diagnose, ...] = (
    replace(
        RATE,
        codes=(),
        statuses=(),
        when=lambda c: "RESOURCE_OPERATION_RATE_EXCEEDED" in c.reasons and "/global/" in c.text,
    ),
    Rule(
        ErrorKind.CAPACITY,
        "{c.could_not}: the subnetwork has no internal addresses left",
        codes={"IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"},
        scope=Scope.ZONE,
        hint="select a subnetwork with free addresses, --subnet NAME, or another region, --zone REGION",
    ),
    *(
        Rule(
            ErrorKind.CAPACITY,
            f"{{c.could_not}}: {why}",
            codes={code},
            text={"RESOURCE_NOT_FOUND": UNAUTHORIZED, "PREEMPTED": "failed to start due to preemption"}.get(code, ""),
            scope=Scope.ZONE,
            hint=_WAIT,
            again=_RETRY,
        )
        for code, why in {
            "CONDITION_NOT_MET": "a condition of Compute Engine is not met",
            "RESOURCE_NOT_FOUND": "a required resource does not exist",
            "RESOURCE_NOT_READY": "a resource of this name is still being stopped or deleted",
            "RESOURCE_OPERATION_RATE_EXCEEDED": "the rate of changes is limited",
            "UNSUPPORTED_OPERATION": "instances were preempted during their creation",
            "PREEMPTED": "instances were preempted during their creation",
        }.items()
    ),
)

TOO_FEW = Rule(
    ErrorKind.CAPACITY,
    "{c.could_not}: only some could be created, and these were deleted",
    codes=("VM_MIN_COUNT_NOT_REACHED", "MISSING"),
    scope=Scope.ZONE,
    hint=_WAIT,
    again=_RETRY,
)
