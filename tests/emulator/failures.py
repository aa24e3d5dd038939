"""Bodies of the API's refusals and of failed operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

Json = dict[str, Any]

_HELP = {
    "help": {
        "links": [
            {
                "description": "Troubleshooting documentation",
                "url": "https://cloud.google.com/compute/docs/resource-error",
            }
        ]
    }
}


class Refusal(Exception):
    """An HTTP error.

    Args:
        status: HTTP status.
        reason: ``alreadyExists``.
        message: For a person.
        domain: ``global``, ``usageLimits``.
        canonical: ``PERMISSION_DENIED``; empty: the body has no ``status``.
        details: The body's ``details``.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        domain: str = "global",
        canonical: str = "",
        details: list[Json] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        error: Json = {
            "code": status,
            "message": message,
            "errors": [{"message": message, "domain": domain, "reason": reason}],
        }
        if canonical:
            error["status"] = canonical
        if details:
            error["details"] = details
        self.body: Json = {"error": error}
        self.headers = {"Retry-After": "1"} if status == HTTPStatus.TOO_MANY_REQUESTS else {}


@dataclass(frozen=True)
class Failure:
    """Why an operation failed.

    Attributes:
        errors: As in ``error.errors`` of the operation.
        http: ``httpErrorStatusCode``.
    """

    errors: tuple[Json, ...]
    http: int = 400

    def fields(self) -> Json:
        """Return the error fields of the operation."""
        return {
            "error": {"errors": list(self.errors)},
            "httpErrorStatusCode": self.http,
            "httpErrorMessage": HTTPStatus(self.http).phrase.upper(),
        }


@dataclass(frozen=True)
class Machine:
    """The requested machine and its location, for messages.

    Attributes:
        project: Project.
        zone: Zone.
        machine_type: ``n1-standard-4``.
        gpu: ``nvidia-tesla-t4``; empty: none.
        gpus: How many.
    """

    project: str
    zone: str
    machine_type: str
    gpu: str = ""
    gpus: int = 0


def not_found(path: str) -> Refusal:
    """The resource at `path` (``projects/…``) does not exist."""
    return Refusal(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> Refusal:
    """The resource at `path` (``projects/…``) exists."""
    return Refusal(409, "alreadyExists", f"The resource '{path}' already exists")


def in_use(path: str, user: str) -> Refusal:
    """The disk at `path` is used by the resource at `user` (``projects/…``)."""
    message = f"The disk resource '{path}' is already being used by '{user}'"
    return Refusal(400, "resourceInUseByAnotherResource", message)


def invalid(name: str, value: object, why: str) -> Refusal:
    """The value of a field is wrong."""
    return Refusal(400, "invalid", f"Invalid value for field '{name}': '{value}'. {why}")


def required(name: str) -> Refusal:
    """A field is missing."""
    return Refusal(400, "required", f"Required field '{name}' not specified")


def bad_request(message: str) -> Refusal:
    """The request cannot be fulfilled as it is."""
    return Refusal(400, "badRequest", message)


def condition_not_met(message: str) -> Refusal:
    """A fingerprint is stale, or an organisation's policy forbids it."""
    return Refusal(412, "conditionNotMet", message)


def api_disabled(project: str, service: str = "compute.googleapis.com") -> Refusal:
    """The project has not enabled the API."""
    url = f"https://console.developers.google.com/apis/api/{service}/overview?project={project}"
    title = "Compute Engine API" if service.startswith("compute.") else service
    message = (
        f"{title} has not been used in project {project} before or it is disabled. Enable it by visiting {url} then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and "
        "retry."
    )
    details: list[Json] = [
        {
            "@type": "type.googleapis.com/google.rpc.Help",
            "links": [{"description": "Google developers console API activation", "url": url}],
        },
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "SERVICE_DISABLED",
            "domain": "googleapis.com",
            "metadata": {"service": service, "consumer": f"projects/{project}"},
        },
    ]
    return Refusal(
        403, "accessNotConfigured", message, domain="usageLimits", canonical="PERMISSION_DENIED", details=details
    )


def forbidden(permission: str, resource: str) -> Refusal:
    """The caller lacks a permission."""
    return Refusal(403, "forbidden", f"Required '{permission}' permission for '{resource}'")


def rate_limited(status: int) -> Refusal:
    """Too many requests in a minute; 403 or 429."""
    message = (
        "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service "
        "'compute.googleapis.com' for consumer 'project_number:100000000001'."
    )
    return Refusal(status, "rateLimitExceeded", message, domain="usageLimits")


def unauthenticated() -> Refusal:
    """The access token is missing, expired or wrong."""
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    return Refusal(401, "authError", message, canonical="UNAUTHENTICATED")


def quota_refusal(metric: str, limit: float, where: str) -> Refusal:
    """A quota in the form of an HTTP error."""
    message = _quota_message(metric, limit, where)
    return Refusal(403, "quotaExceeded", message, domain="usageLimits")


def backend_error(status: int) -> Refusal:
    """The service itself fails; 500 or 503."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return Refusal(503, "backendError", "The service is currently unavailable.", canonical="UNAVAILABLE")
    return Refusal(500, "backendError", "Internal error. Please try again or contact Google Support.")


def constraint_violated(constraint: str, project: str, zone: str) -> Refusal:
    """An organisation's policy forbids it."""
    return condition_not_met(
        f"Constraint {constraint} violated for project {project}. Add instance "
        f"projects/{project}/zones/{zone}/instances to the constraint to use external IP with it."
    )


def stockout(machine: Machine, zones_available: str = "") -> Failure:
    """A zone has no room for it, with details."""
    vm = f"A {machine.machine_type} VM instance"
    if machine.gpu:
        vm += f" with {machine.gpus} {machine.gpu} accelerator(s)"
    advice = f" Consider trying your request in the {zones_available} zone(s)." if zones_available else ""
    localized = (
        f"{vm} is currently unavailable in the {machine.zone} zone.{advice} Alternatively, you can try your request "
        "again with a different VM hardware configuration or at a later time. For more information, see the "
        "troubleshooting documentation."
    )
    message = (
        f"The zone 'projects/{machine.project}/zones/{machine.zone}' does not have enough resources available to "
        "fulfill the request.  'NULL:0/NULL:0/NULL:0 (state:STOCKOUT, sub-state:STOCKOUT, resource type:compute)'."
    )
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": {
            "zone": machine.zone,
            "vmType": machine.machine_type,
            "attachment": f"{machine.gpu}:{machine.gpus}" if machine.gpu else "",
            "zonesAvailable": zones_available,
        },
    }
    details = [_HELP, {"localizedMessage": {"locale": "en-US", "message": localized}}, {"errorInfo": info}]
    return Failure(
        ({"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": message, "errorDetails": details},), 503
    )


def stockout_plain(machine: Machine) -> Failure:
    """A zone has no room for it, without details."""
    where = f"The zone 'projects/{machine.project}/zones/{machine.zone}'"
    message = (
        f"{where} does not have enough resources available to fulfill the request.  Try a different zone, or try "
        "again later."
    )
    return Failure(({"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message},), 503)


def preempted(_: Machine) -> Failure:
    """A Spot VM was preempted before it ran; earlier, the code was UNSUPPORTED_OPERATION.

    Source: https://github.com/scylladb/scylla-cluster-tests/pull/16106.
    """
    return operation_failure("PREEMPTED", "Instance failed to start due to preemption.")


def quota_failure(metric: str, limit: float, region: str) -> Failure:
    """A quota in the form of an operation's error; `region` empty: the quota is global."""
    where = f"in region {region}" if region else "globally"
    dimensions = {"region": region} if region else {"global": "global"}
    name = metric.replace("_", "-") + ("-per-project-region" if region else "-per-project")
    service = "compute.googleapis.com/"
    return Failure(
        (
            {
                "code": "QUOTA_EXCEEDED",
                "message": _quota_message(metric, limit, where),
                "errorDetails": [
                    {
                        "quotaInfo": {
                            "metricName": service + metric.lower(),
                            "limitName": name,
                            "limit": float(limit),
                            "dimensions": dimensions,
                        }
                    }
                ],
            },
        ),
        403,
    )


def free_trial() -> Failure:
    """The billing account is in its free trial, which has no GPUs."""
    return operation_failure(
        "UNSUPPORTED_OPERATION",
        "Your billing account is currently in the free tier where non-TPU accelerators are not available. Please "
        "upgrade to a paid billing account as described here: https://cloud.google.com/free/docs/gcp-free-tier#how-to-upgrade",
    )


def operation_failure(code: str, message: str, http: int = 400) -> Failure:
    """Any other failure of an operation."""
    return Failure(({"code": code, "message": message},), http)


def min_count(count: int, causes: tuple[Json, ...] = ()) -> Failure:
    """Return the failure of a bulk insert that could not create enough instances; its first message is generic."""
    message = f"Requested minimum count of {count} VMs could not be created."
    return Failure(({"code": "VM_MIN_COUNT_NOT_REACHED", "message": message}, *causes), 409)


@dataclass
class Violation:
    """Something that does not fit the discovery document.

    Attributes:
        side: ``client`` or ``emulator``.
        method: Method id.
        problems: What does not fit.
    """

    side: str
    method: str
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.side}: {self.method}: {'; '.join(self.problems)}"


def _quota_message(metric: str, limit: float, where: str) -> str:
    return f"Quota '{metric}' exceeded.  Limit: {float(limit)} {where}."
