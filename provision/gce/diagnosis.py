"""Diagnose errors of Compute Engine: message, scope, and what the user can do.

The table `_RULES` has the most decisive rule first. The first rule that matches any failure of a call decides,
because Compute Engine often puts the least specific failure first (VM_MIN_COUNT_NOT_REACHED).

Source of the forms of errors: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation and
https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import quote

from provision.gce.catalog.locations import is_zone, region_of
from provision.provider import ErrorKind, ProviderError


@dataclass(frozen=True)
class Failure:
    """One failure that an answer reports.

    Attributes:
        code: Code of a failed operation, ``ZONE_RESOURCE_POOL_EXHAUSTED``; reason of an HTTP error,
            ``quotaExceeded``; ``UNREACHABLE``, ``DEADLINE``, or ``MISSING`` from this program.
        message: Message of the failure.
        http: HTTP status; 0: none. All failures of an operation have the same status.
        domain: Domain of the error, ``usageLimits``.
        details: Further details, unchanged.
        of_operation: An operation ended with the failure; otherwise a call was refused.
    """

    code: str = ""
    message: str = ""
    http: int = 0
    domain: str = ""
    details: tuple[Mapping[str, Any], ...] = ()
    of_operation: bool = False


class Scope(Enum):
    """Scope of a failure: where another attempt would fail as well."""

    RETRY = "retry"
    ZONE = "zone"
    REGION = "region"
    EVERYTHING = "everything"


@dataclass(eq=False, kw_only=True)
class Diagnosis(ProviderError):  # noqa: N818 - it also decides where to try again
    """Explanation of a failure; its cause is in the words of Compute Engine if it reports one.

    Attributes:
        scope: Where another attempt would fail as well.
        zones: Zones that have the requested resources, according to Compute Engine.
    """

    scope: Scope
    zones: tuple[str, ...] = ()


# --- failures in answers ------------------------------------------------------------------------------------------


def from_http(status: int, body: Mapping[str, Any] | None) -> list[Failure]:
    """Return the failures that an HTTP error reports, one or more.

    Args:
        status: HTTP status, 400 or more.
        body: JSON of the answer; None if it is not JSON.
    """
    error = _mapping(_mapping(body).get("error"))
    message = str(error.get("message", ""))
    details = _mappings(error.get("details"))
    failures = [
        Failure(
            code=str(item.get("reason", "")),
            message=str(item.get("message", "")) or message,
            http=status,
            domain=str(item.get("domain", "")),
            details=details,
        )
        for item in _mappings(error.get("errors"))
    ]
    return failures or [Failure(code=str(error.get("status", "")), message=message, http=status, details=details)]


def from_operation(operation: Mapping[str, Any]) -> list[Failure]:
    """Return the failures that an operation reports; empty if there are none.

    Args:
        operation: The operation, as JSON of the REST API.
    """
    status = int(operation.get("httpErrorStatusCode") or 0)
    failures = [
        Failure(
            code=str(item.get("code", "")),
            message=str(item.get("message", "")),
            http=status,
            details=_mappings(item.get("errorDetails")),
            of_operation=True,
        )
        for item in _mappings(_mapping(operation.get("error")).get("errors"))
    ]
    if not failures and status >= 400:
        message = str(operation.get("httpErrorMessage", ""))
        return [Failure(code=message.replace(" ", "_"), message=message, http=status)]
    return failures


def _mapping(thing: object) -> Mapping[str, Any]:
    return thing if isinstance(thing, Mapping) else {}


def _mappings(thing: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(item for item in thing if isinstance(item, Mapping)) if isinstance(thing, Sequence) else ()


# --- input of the rules -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A failure with the project, place, and activity of its call."""

    failure: Failure
    project: str
    place: str
    doing: str
    code: str = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", " ".join(self.failure.code.split()))
        object.__setattr__(self, "text", " ".join(self.failure.message.split()))

    @property
    def status(self) -> int:
        """Return the HTTP status of a refused call; 0 if an operation failed, or there was no answer."""
        return 0 if self.failure.of_operation else self.failure.http

    @property
    def could_not(self) -> str:
        """Return the start of a message, ``could not create 2 instances in us-central1-a``."""
        return f"could not {self.doing}" + (f" in {self.place}" if self.place else "")

    @property
    def here(self) -> str:
        return self.place or f"project {self.project}"

    @property
    def reasons(self) -> frozenset[str]:
        """Return the code of the failure and the reasons in its details."""
        return frozenset({self.code, *(str(info.get("reason", "")) for info in self._infos())} - {""})

    def metadata(self, *names: str) -> str:
        """Return the first of the named metadata that the details contain; empty if there is none."""
        for info in self._infos():
            data = _mapping(info.get("metadatas")) or _mapping(info.get("metadata"))
            for name in names:
                if data.get(name):
                    return str(data[name])
        return ""

    @property
    def zones_available(self) -> list[str]:
        """Return the zones that have the resources that this zone lacks."""
        return [zone for zone in re.split(r"[\s,;]+", self.metadata("zonesAvailable")) if zone]

    @property
    def localized(self) -> str:
        """Return the localized message of the details; otherwise the message of the failure."""
        for detail in self.failure.details:
            message = _mapping(detail.get("localizedMessage")).get("message")
            if message:
                return " ".join(str(message).split())
        return self.text

    def quota(self, name: str) -> str:
        """Return an entry of the details about a quota: ``limitName``, ``limit``."""
        for detail in self.failure.details:
            info = _mapping(detail.get("quotaInfo"))
            if info.get(name) is not None:
                return str(info[name])
        return self.metadata(name)

    def _infos(self) -> Iterator[Mapping[str, Any]]:
        for detail in self.failure.details:
            if "errorInfo" in detail:
                yield _mapping(detail["errorInfo"])
            elif str(detail.get("@type", "")).endswith("ErrorInfo"):
                yield detail


_Rule = Callable[[_Case], "Diagnosis | None"]


def diagnose(failures: Sequence[Failure], *, project: str, place: str, doing: str) -> Diagnosis:
    """Return the diagnosis of all failures of one call; the most specific failure decides.

    Args:
        failures: Failures that the answer reports.
        project: Project of the call.
        place: Zone or region of the call; empty: it has none.
        doing: Purpose of the call, ``create 2 instances``.
    """
    cases = [_Case(failure, project, place, doing) for failure in failures or (Failure(),)]
    zones = tuple(dict.fromkeys(zone for case in cases for zone in case.zones_available))
    for rule in _RULES:
        for case in cases:
            diagnosis = rule(case)
            if diagnosis is not None:
                return replace(diagnosis, zones=zones)
    return _unknown(cases[0])


# --- credentials and permissions ----------------------------------------------------------------------------------

_LOGIN = ("gcloud", "auth", "application-default", "login")


def grant_role(project: str, role: str) -> str:
    """Return the command line that gives the user a role; the shell inserts the account that gcloud uses."""
    words = shlex.join(["gcloud", "projects", "add-iam-policy-binding", project, "--role", role])
    return f'{words} --member="user:$(gcloud config get account)"'


def no_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that there are no Application Default Credentials."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "no Google Cloud credentials found",
        scope=Scope.EVERYTHING,
        cause=_message(reason) or "GOOGLE_APPLICATION_CREDENTIALS is not set, and gcloud is not logged in",
        next_steps=[_LOGIN],
    )


def expired_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that Google does not accept the credentials any more."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "Google Cloud rejected the credentials of this computer",
        scope=Scope.EVERYTHING,
        cause=_message(reason) or "they have expired or were revoked",
        next_steps=[_LOGIN],
    )


def no_project() -> Diagnosis:
    """Return the diagnosis that neither the options nor the credentials name a project."""
    return Diagnosis(
        ErrorKind.USAGE,
        "no Google Cloud project set",
        scope=Scope.EVERYTHING,
        cause="neither --project nor the credentials name a project",
        hint="set the project: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def wrong_project(project: str, reason: str = "") -> Diagnosis:
    """Return the diagnosis that the project does not exist, or that the caller may not see it."""
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {project!r} does not exist, or these credentials cannot access it",
        scope=Scope.EVERYTHING,
        cause=_message(reason),
        hint="select one of your projects: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def _login(case: _Case) -> Diagnosis | None:
    if case.status == 401 or case.reasons & {"authError", "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"}:
        return expired_credentials(case.text)
    return None


_BILLING = frozenset(
    {"BILLING_DISABLED", "billingNotEnabled", "billingDisabled", "UREQ_PROJECT_BILLING_NOT_FOUND", "accountDisabled"}
)
_BILLING_TEXT = re.compile(
    r"requires billing to be enabled|has billing disabled|billing (?:is|has been) (?:disabled|not enabled)"
    r"|billing account .*\b(?:disabled|absent|closed|not found)\b",
    re.IGNORECASE,
)
_SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)\b")


def _billing(case: _Case) -> Diagnosis | None:
    if not case.reasons & _BILLING and not _BILLING_TEXT.search(case.text):
        return None
    return Diagnosis(
        ErrorKind.MISSING,
        f"project {case.project} has no billing account, which Compute Engine requires",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint=f"link one of your billing accounts: gcloud billing projects link {case.project} --billing-account ID",
        next_steps=[("gcloud", "billing", "accounts", "list")],
    )


def _disabled(case: _Case) -> Diagnosis | None:
    if not case.reasons & {"accessNotConfigured", "SERVICE_DISABLED"}:
        return None
    named = _SERVICE.search(case.text)
    service = case.metadata("service") or (named[1] if named else "compute.googleapis.com")
    return Diagnosis(
        ErrorKind.MISSING,
        f"the API {service} is not enabled in project {case.project}",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="it takes effect after a few minutes",
        next_steps=[("gcloud", "services", "enable", service, "--project", case.project)],
    )


_NO_PROJECT = re.compile(
    r"The resource 'projects/[^/']+' was not found|Failed to find project|Unknown project"
    r"|Project \S+ not found or deleted|Invalid value for project\b",
    re.IGNORECASE,
)


def _project(case: _Case) -> Diagnosis | None:
    if case.reasons & {"CONSUMER_INVALID", "RESOURCE_PROJECT_INVALID"} or (
        case.status in {400, 403, 404} and _NO_PROJECT.search(case.text)
    ):
        return wrong_project(case.project, case.text)
    return None


_PERMISSION = re.compile(
    r"Required '([a-zA-Z0-9.]+)' permission|[Pp]ermission '?([a-z][a-zA-Z0-9]*\.[a-zA-Z0-9.]+)'?"
)
_ROLES = (
    ("iam.serviceAccounts.", "roles/iam.serviceAccountUser"),
    ("serviceusage.", "roles/serviceusage.serviceUsageConsumer"),
    ("iap.", "roles/iap.tunnelResourceAccessor"),
    ("resourcemanager.", "roles/browser"),
    ("compute.firewalls.", "roles/compute.securityAdmin"),
    ("compute.networks.updatePolicy", "roles/compute.securityAdmin"),
    *(
        (f"compute.{noun}.{verb}", "roles/compute.networkAdmin")
        for noun in ("networks", "subnetworks")
        for verb in ("create", "delete", "update", "patch", "expandIpCidrRange")
    ),
    ("compute.networks.", "roles/compute.networkUser"),
    ("compute.subnetworks.", "roles/compute.networkUser"),
    ("compute.images.", "roles/compute.imageUser"),
    ("compute.instances.", "roles/compute.instanceAdmin.v1"),
    ("compute.disks.", "roles/compute.instanceAdmin.v1"),
    ("compute.projects.get", "roles/compute.viewer"),
    ("compute.regions.", "roles/compute.viewer"),
    ("compute.zones.", "roles/compute.viewer"),
)


def role_for(permission: str) -> str:
    """Return the narrowest predefined role with `permission` that a user of this program is likely to get.

    Source: https://cloud.google.com/compute/docs/access/iam
    """
    lower = permission.lower()
    return next((role for prefix, role in _ROLES if lower.startswith(prefix.lower())), "roles/compute.admin")


def missing_permission(permission: str, project: str, *, doing: str, cause: str = "") -> Diagnosis:
    """Return the diagnosis that the caller lacks a permission.

    Args:
        permission: ``compute.instances.create``.
        project: Project of the call.
        doing: Purpose of the call, ``create 2 instances``.
        cause: Message of the answer.
    """
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {doing}: these credentials lack the permission {permission} in project {project}",
        scope=Scope.EVERYTHING,
        cause=cause,
        hint="ask an administrator of the project for it, or add it if you have the right",
        next_steps=[grant_role(project, role_for(permission))],
    )


_SCOPES = frozenset({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"})


def _token_scopes(case: _Case) -> Diagnosis | None:
    """Diagnose an access token that is valid, but not for Compute Engine; the roles of the caller do not matter."""
    if not case.reasons & _SCOPES and "insufficient authentication scopes" not in case.text:
        return None
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {case.doing}: the scopes of these credentials do not allow calls to Compute Engine",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="on a Compute Engine instance, stop it and give it the scope cloud-platform with "
        "'gcloud compute instances set-service-account', or log in as yourself",
        next_steps=[_LOGIN],
    )


_SERVICE_ACCOUNT = re.compile(
    r"service account \S+ (?:does not exist|was not found|is disabled|not found)"
    r"|of type 'serviceAccount' was not found",
    re.IGNORECASE,
)


def _service_account(case: _Case) -> Diagnosis | None:
    """Diagnose that the service account for the instances does not exist."""
    if not _SERVICE_ACCOUNT.search(case.text):
        return None
    return Diagnosis(
        ErrorKind.USAGE,
        f"{case.could_not}: the service account for the instances does not exist in project {case.project}",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="select an existing account with --service-account, or remove --scopes to use none",
        next_steps=[("gcloud", "iam", "service-accounts", "list", "--project", case.project)],
    )


def _permission(case: _Case) -> Diagnosis | None:
    named = _PERMISSION.search(case.text)
    permission = case.metadata("permission") or (named and (named[1] or named[2])) or ""
    if "iam.serviceAccountUser" in case.text or "does not have access to service account" in case.text:
        permission = "iam.serviceAccounts.actAs"
    denied = case.reasons & {"IAM_PERMISSION_DENIED", "PERMISSIONS_ERROR", "USER_PROJECT_DENIED"}
    denied |= case.reasons & {"forbidden", "PERMISSION_DENIED", "SERVICE_ACCOUNT_ACCESS_DENIED"}
    if permission and (case.status == 403 or denied or named):
        return missing_permission(permission.rstrip("."), case.project, doing=case.doing, cause=case.text)
    if "USER_PROJECT_DENIED" in denied:
        return missing_permission("serviceusage.services.use", case.project, doing=case.doing, cause=case.text)
    if not denied:
        return None
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {case.doing}: project {case.project} does not allow this for these credentials",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="fleet doctor lists the missing permissions",
        next_steps=[("fleet", "doctor", "--provider", "gce", "--project", case.project)],
    )


# --- rules of the organisation ------------------------------------------------------------------------------------

_CONSTRAINT = re.compile(r"constraints/([a-z]+(?:\.[a-z0-9_]+)+)", re.IGNORECASE)  # customConstraints/… as well
_POLICY = re.compile(r"\bpolic(?:y|ies)\b|\bconstraints?\b", re.IGNORECASE)


def _policy(case: _Case) -> Diagnosis | None:
    match = _CONSTRAINT.search(case.text)
    if match is None:
        return _unnamed_policy(case)
    # A managed constraint forbids the same as the legacy one: compute.managed.vmExternalIpAccess.
    legacy = match[1].replace(".managed.", ".")
    message, advice, scope = _CONSTRAINTS.get(legacy, _ANY_CONSTRAINT)
    names = {"constraint": match[1], "project": case.project}
    return Diagnosis(
        ErrorKind.USAGE,
        f"{case.could_not}: {message.format(**names)}",
        scope=scope,
        cause=case.text,
        hint=advice.format(**names),
        next_steps=[]
        if legacy in _CONSTRAINTS
        else [("gcloud", "org-policies", "describe", match[1], "--project", case.project, "--effective")],
        again={"--iap": True} if legacy == "compute.vmExternalIpAccess" else None,
    )


def _unnamed_policy(case: _Case) -> Diagnosis | None:
    """Diagnose a policy of the organization that the answer does not name; it applies to the whole project."""
    unmet = case.status == 412 or case.reasons & {"conditionNotMet", "CONDITION_NOT_MET"}
    if not unmet or not _POLICY.search(case.text):
        return None
    return Diagnosis(
        ErrorKind.USAGE,
        f"{case.could_not}: a policy of the organization forbids it in project {case.project}",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="ask an administrator of the organization for an exception",
        next_steps=[("gcloud", "org-policies", "list", "--project", case.project)],
    )


_ANY_CONSTRAINT = (
    "the organization policy {constraint} forbids it in project {project}",
    "ask an administrator of the organization for an exception",
    Scope.EVERYTHING,
)
_ALLOW = (
    "administrators can lift it: "
    "gcloud resource-manager org-policies disable-enforce {constraint} --project {project}"
)
_CONSTRAINTS: Mapping[str, tuple[str, str, Scope]] = {
    "compute.vmExternalIpAccess": (
        "the policy {constraint} forbids external addresses in project {project}",
        "--iap reaches the instances through Identity-Aware Proxy, without external addresses",
        Scope.EVERYTHING,
    ),
    "compute.requireOsLogin": (
        "the policy {constraint} requires OS Login, which rejects the fleet's own SSH key",
        _ALLOW,
        Scope.EVERYTHING,
    ),
    "compute.disableGuestAttributesAccess": (
        "the policy {constraint} disables guest attributes, from which the SSH host keys of the instances are read",
        _ALLOW,
        Scope.EVERYTHING,
    ),
    "compute.trustedImageProjects": (
        "the policy {constraint} does not allow images of this project",
        "select an allowed image: --image projects/PROJECT/global/images/family/FAMILY",
        Scope.EVERYTHING,
    ),
    "compute.requireShieldedVm": (
        "the policy {constraint} requires an image that supports Shielded VM",
        "select such an image: --image projects/PROJECT/global/images/family/FAMILY",
        Scope.EVERYTHING,
    ),
    "gcp.resourceLocations": (
        "the policy {constraint} does not allow resources in this location",
        "select an allowed region: --zone REGION",
        Scope.REGION,
    ),
}


# --- quotas -------------------------------------------------------------------------------------------------------

_QUOTA = re.compile(r"Quota '([A-Z0-9_a-z-]+)' exceeded\.?(?:\s+Limit:\s*([0-9.]+))?")
_GLOBAL_QUOTAS = frozenset({"GPUS_ALL_REGIONS", "GPUS-ALL-REGIONS-per-project", "CPUS_ALL_REGIONS"})


def quota_page(project: str) -> str:
    """Return the URL of the page on which a larger quota is requested."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={quote(project)}"


def quota_hint(metric: str, project: str, region: str = "") -> str:
    """Return a hint how to request a larger quota."""
    where = f" in {region}" if region else ""
    return f"request more {metric}{where} at {quota_page(project)}"


_OVER_QUOTA = re.compile(r"exceed\w* (?:the )?quota limit", re.IGNORECASE)


def _quota(case: _Case) -> Diagnosis | None:
    exhausted = "RESOURCE_EXHAUSTED" in case.reasons and _OVER_QUOTA.search(case.text)
    if not case.reasons & {"QUOTA_EXCEEDED", "quotaExceeded"} and (not exhausted or "per minute" in case.text):
        return None
    named = _QUOTA.search(case.text)
    metric = (named[1] if named else "") or case.quota("limitName") or case.quota("metricName").rpartition("/")[2]
    limit = (named[2] if named and named[2] else "") or case.quota("limit")
    allows = f" allows {_plain_number(limit)}" if limit else " is used up"
    everywhere = metric.replace("-per-project", "").upper().replace("-", "_") in _GLOBAL_QUOTAS or (
        "globally" in case.text
    )
    where = " in all regions together" if everywhere else f" in {_region_name(case.place)}" if case.place else ""
    return Diagnosis(
        ErrorKind.QUOTA,
        f"{case.could_not}: the quota {metric or '(unnamed)'} of project {case.project}{allows}{where}",
        scope=Scope.EVERYTHING if everywhere else Scope.REGION,
        cause=case.text,
        hint=quota_hint(metric or "of it", case.project, "" if everywhere else _region_name(case.place))
        + ("" if everywhere else ", or select another region: --zone REGION"),
    )


def _is_global_quota(case: _Case) -> Diagnosis | None:
    """Diagnose a quota for all regions; it decides before a quota of one region."""
    diagnosis = _quota(case)
    return diagnosis if diagnosis is not None and diagnosis.scope is Scope.EVERYTHING else None


def _region_name(place: str) -> str:
    """Return the region of a zone, or a region unchanged."""
    return region_of(place) if is_zone(place) else place


def _plain_number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


# --- missing resources --------------------------------------------------------------------------------------------

_RESOURCE = re.compile(
    r"'?(?:https?://\S+/)?projects/([^/']+)/((?:global|zones/[^/']+|regions/[^/']+)/\S+?)/?'?(?=[\s.,')]|\Z)"
)
_UNAUTHORIZED = "is not found or access is unauthorized"
_NOT_FOUND = re.compile(r"was not found|cannot be found|is not found|does not exist|not found in zone|not found for")
_FIELD = re.compile(r"Invalid value for field '([^']+)'(?:: '([^']*)')?")


def _not_found(case: _Case) -> Diagnosis | None:
    missing = case.reasons & {"notFound", "NOT_FOUND", "RESOURCE_NOT_FOUND"} or case.status == 404
    if (not missing and not _NOT_FOUND.search(case.text)) or _UNAUTHORIZED in case.text:
        return None
    path, named = _RESOURCE.search(case.text), _FIELD.search(case.text)
    subject = f"{path[2] if path else ''} {named[1] if named else ''}"
    name = (path[2] if path else (named[2] or "") if named else "").rpartition("/")[2]
    words = {"name": name or "of that name", "here": case.here, "project": case.project}
    for part, (message, advice, listing, scope) in _THINGS:
        if part in subject:
            return Diagnosis(
                ErrorKind.USAGE,
                message.format(**words),
                scope=scope,
                cause=case.text,
                hint=advice,
                next_steps=[("gcloud", "compute", *listing.split(), "list", "--project", case.project)],
            )
    return None


_NO_NETWORK = (
    "project {project} has no network {name}",
    "select an existing network: --network NAME",
    "networks",
    Scope.EVERYTHING,
)
_THINGS: tuple[tuple[str, tuple[str, str, str, Scope]], ...] = (
    (
        "ubnetwork",
        (
            "{here} has no subnetwork {name}",
            "select an existing subnetwork: --subnet NAME",
            "networks subnets",
            Scope.REGION,
        ),
    ),
    ("networks/", _NO_NETWORK),
    ("].network", _NO_NETWORK),
    (
        "machineType",
        (
            "{here} has no machine type {name}",
            "select another --zone or --machine-type",
            "machine-types",
            Scope.ZONE,
        ),
    ),
    (
        "cceleratorType",
        (
            "{here} has no GPUs of type {name}",
            "select another --zone or --gpu",
            "accelerator-types",
            Scope.ZONE,
        ),
    ),
    (
        "diskType",
        (
            "{here} has no disks of type {name}",
            'select another disk-type in fleet.toml, e.g. disk-type = "pd-balanced"',
            "disk-types",
            Scope.ZONE,
        ),
    ),
    (
        "mage",
        (
            "boot image {name} does not exist, or these credentials cannot access it",
            "select an existing image: --image projects/PROJECT/global/images/family/FAMILY",
            "images",
            Scope.EVERYTHING,
        ),
    ),
)


# --- capacity -----------------------------------------------------------------------------------------------------

_STOCKOUT = frozenset(
    {
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "RESOURCE_POOL_EXHAUSTED",
        "insufficientCapacity",
        "resource_availability",
        "stockout",
    }
)
_STOCKOUT_TEXT = re.compile(r"does not have enough resources available|STOCKOUT|is currently unavailable in the")
_WAIT = "--retry-until-up waits for capacity; or allow other zones (--zone), or another --gpu"
_RETRY = {"--retry-until-up": True}


def _stockout(case: _Case) -> Diagnosis | None:
    if not case.reasons & _STOCKOUT and not _STOCKOUT_TEXT.search(case.text):
        return None
    machine, gpus = case.metadata("vmType"), case.metadata("attachment", "attachments")
    wanted = " with ".join(filter(None, (machine, gpus)))
    return Diagnosis(
        ErrorKind.CAPACITY,
        f"{case.here} has no capacity for {wanted} now" if wanted else f"{case.here} has no capacity to {case.doing}",
        scope=Scope.ZONE,
        cause=case.localized,
        hint=_WAIT,
        again=_RETRY,
    )


_OF_THE_ZONE: Mapping[str, str] = {
    "UNSUPPORTED_OPERATION": "instances were preempted during their creation",
    "IP_SPACE_EXHAUSTED": "the subnetwork has no internal addresses left",
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": "the subnetwork has no internal addresses left",
    "RESOURCE_NOT_READY": "a resource of this name is still being stopped or deleted",
    "RESOURCE_OPERATION_RATE_EXCEEDED": "the rate of changes is limited",
    "RESOURCE_NOT_FOUND": "a required resource does not exist",
    "CONDITION_NOT_MET": "a condition of Compute Engine is not met",
}


def _zone_trouble(case: _Case) -> Diagnosis | None:
    code = next((reason for reason in sorted(case.reasons) if reason in _OF_THE_ZONE), "")
    if not code and _UNAUTHORIZED not in case.text:
        return None
    if code == "RESOURCE_OPERATION_RATE_EXCEEDED" and "/global/" in case.text:
        return _rate_of(case)
    why = _OF_THE_ZONE[code or "RESOURCE_NOT_FOUND"]
    full = "select a subnetwork with free addresses, --subnet NAME, or another region, --zone REGION"
    return Diagnosis(
        ErrorKind.CAPACITY,
        f"{case.could_not}: {why}",
        scope=Scope.ZONE,
        cause=case.text,
        hint=full if code.startswith("IP_SPACE") else _WAIT,
        again=None if code.startswith("IP_SPACE") else _RETRY,
    )


def _gone(case: _Case) -> Diagnosis | None:
    if case.status != 404 and not case.reasons & {"notFound", "NOT_FOUND"}:
        return None
    return Diagnosis(
        ErrorKind.MISSING,
        f"{case.could_not}: the resource does not exist",
        scope=Scope.EVERYTHING,
        cause=case.text,
        next_steps=[("fleet", "status")],
    )


_RATE = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"})


def _rate(case: _Case) -> Diagnosis | None:
    if not case.reasons & _RATE and case.status != 429:
        return None
    return _rate_of(case)


def _rate_of(case: _Case) -> Diagnosis:
    return Diagnosis(
        ErrorKind.UNREACHABLE,
        f"{case.could_not}: project {case.project} exceeds the rate of calls to Compute Engine",
        scope=Scope.RETRY,
        cause=case.text,
        hint="repeat the command in a minute",
    )


_INTERNAL = frozenset(
    {"backendError", "internalError", "INTERNAL_ERROR", "INTERNAL", "UNAVAILABLE", "SERVICE_UNAVAILABLE"}
)


def _internal(case: _Case) -> Diagnosis | None:
    if not case.reasons & _INTERNAL and not 500 <= case.status < 600:
        return None
    status = f" (HTTP {case.status})" if case.status else ""
    return Diagnosis(
        ErrorKind.UNREACHABLE,
        f"{case.could_not}: internal error of Compute Engine{status}",
        scope=Scope.RETRY,
        cause=case.text,
        hint="repeat the command in a minute; see https://status.cloud.google.com for outages",
    )


def _changed_meanwhile(case: _Case) -> Diagnosis | None:
    if case.reasons & {"resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "resourceNotReady"}:
        why = "it is used by a resource that is being created or deleted"
    elif case.status == 412 or case.reasons & {"conditionNotMet"}:
        why = "it was changed at the same time"
    else:
        return None
    return Diagnosis(
        ErrorKind.UNREACHABLE,
        f"{case.could_not}: {why}",
        scope=Scope.RETRY,
        cause=case.text,
        hint="repeat the command",
    )


def _unreachable(case: _Case) -> Diagnosis | None:
    if case.code == "UNREACHABLE":
        return Diagnosis(
            ErrorKind.UNREACHABLE,
            f"{case.could_not}: Compute Engine does not respond",
            scope=Scope.EVERYTHING,
            cause=case.text,
            hint="check the connection to the Internet, then repeat the command",
        )
    if case.code == "DEADLINE":
        return Diagnosis(
            ErrorKind.UNREACHABLE,
            f"{case.could_not}: timed out",
            scope=Scope.ZONE,
            cause=case.text,
            next_steps=[("gcloud", "compute", "operations", "list", "--project", case.project)],
        )
    return None


def _exists(case: _Case) -> Diagnosis | None:
    if case.status != 409 and not case.reasons & {"alreadyExists", "RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"}:
        return None
    return Diagnosis(
        ErrorKind.USAGE,
        f"{case.could_not}: a resource of this name already exists",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="fleet up adopts the resources of the fleet, fleet down deletes them",
        next_steps=[("fleet", "up"), ("fleet", "down")],
    )


# --- requests that cannot be met ----------------------------------------------------------------------------------

_DISK_SIZE = re.compile(r"disk size.*cannot be smaller than the image size \((\d+)\s*GB\)", re.IGNORECASE)
_CUSTOM_NETWORK = re.compile(
    r"custom (subnet ?)?mode.*subnetwork|subnetwork.*(custom (subnet ?)?mode|must be (specified|provided))",
    re.IGNORECASE,
)
_INCOMPATIBLE = re.compile(
    r"not compatible|incompatible|not supported|not available for|cannot be used with", re.IGNORECASE
)
_INVALID = frozenset(
    {"invalid", "badRequest", "required", "INVALID_ARGUMENT", "INVALID_USAGE", "INVALID_FIELD_VALUE"}
)


def _unusable(case: _Case) -> Diagnosis | None:
    hint, again = "", None
    size = _DISK_SIZE.search(case.text)
    if size is not None:
        again = {"--disk-size": size[1]}
    elif _CUSTOM_NETWORK.search(case.text):
        hint = "this network requires a subnetwork: --subnet NAME"
    elif not case.reasons & _INVALID:
        return None
    elif _INCOMPATIBLE.search(case.text):
        hint = "select another --machine-type or --gpu, or another disk-type in fleet.toml"
    else:
        hint = "change the request as the cause describes"
    message = f"{case.could_not}: Compute Engine rejected the request"
    return Diagnosis(ErrorKind.USAGE, message, scope=Scope.EVERYTHING, cause=case.text, hint=hint, again=again)


# --- unspecific failures ------------------------------------------------------------------------------------------

_TOO_FEW = frozenset({"VM_MIN_COUNT_NOT_REACHED", "MISSING"})


def _unlisted(case: _Case) -> Diagnosis | None:
    return _unknown(case) if case.code not in _TOO_FEW else None


def _too_few(case: _Case) -> Diagnosis | None:
    if case.code not in _TOO_FEW:
        return None
    return Diagnosis(
        ErrorKind.CAPACITY,
        f"{case.could_not}: only some could be created, and these were deleted",
        scope=Scope.ZONE,
        cause=case.text,
        hint=_WAIT,
        again=_RETRY,
    )


def _unknown(case: _Case) -> Diagnosis:
    """Return the diagnosis of a failure that no rule matches, with its own message."""
    cause = case.text or "no reason given"
    label = case.code or (f"HTTP {case.status}" if case.status else "")
    return Diagnosis(
        ErrorKind.MISSING,
        f"{case.could_not}: Compute Engine rejected the request ({label or 'unknown error'})",
        scope=Scope.EVERYTHING,
        cause=cause,
        next_steps=[("gcloud", "compute", "operations", "list", "--project", case.project)],
    )


def _message(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


_RULES: tuple[_Rule, ...] = (
    _login,
    _billing,
    _disabled,
    _project,
    _policy,
    _service_account,
    _token_scopes,
    _is_global_quota,
    _quota,
    _stockout,
    _not_found,
    _permission,
    _zone_trouble,
    _gone,
    _unusable,
    _rate,
    _exists,
    _changed_meanwhile,
    _unreachable,
    _internal,
    _unlisted,
    _too_few,
)
