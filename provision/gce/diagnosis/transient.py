"""Diagnoses of failures that pass."""

from __future__ import annotations

from provision.gce.diagnosis.cases import Diagnose, Rule, Scope
from provision.gce.diagnosis.failures import SILENT_ZONE
from provision.provider import ErrorKind

RATE = Rule(
    ErrorKind.UNREACHABLE,
    "{c.could_not}: project {c.project} exceeds the rate of calls to Compute Engine",
    codes={"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"},
    statuses=(429,),
    scope=Scope.RETRY,
    hint="repeat the command in a minute",
)

TRANSIENT: tuple[Diagnose, ...] = (
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: it is used by a resource that is being created or deleted",
        codes={"resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "resourceNotReady"},
        scope=Scope.RETRY,
        hint="repeat the command",
    ),
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: it was changed at the same time",
        codes={"conditionNotMet"},
        statuses=(412,),
        scope=Scope.RETRY,
        hint="repeat the command",
    ),
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: Compute Engine does not respond",
        codes={"UNREACHABLE"},
        hint="check the connection to the Internet, then repeat the command",
    ),
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: {c.text}, and may have instances of the fleet",
        codes={SILENT_ZONE},
        cause="",
        hint="repeat the command when the zone answers; see https://status.cloud.google.com for outages",
    ),
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: timed out",
        codes={"DEADLINE"},
        scope=Scope.ZONE,
        next_steps=("gcloud compute operations list --project {c.project}",),
    ),
    Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: internal error of Compute Engine{c.status_note}",
        codes={"backendError", "internalError", "INTERNAL_ERROR", "INTERNAL", "UNAVAILABLE", "SERVICE_UNAVAILABLE"},
        statuses=range(500, 600),
        scope=Scope.RETRY,
        hint="repeat the command in a minute; see https://status.cloud.google.com for outages",
    ),
)
