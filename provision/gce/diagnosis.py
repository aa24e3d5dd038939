"""Diagnose errors of Compute Engine: message, scope, and what the user can do.

The table `_RULES` has the most decisive rule first. The first rule that matches any failure of a call decides,
because Compute Engine often puts the least specific failure first (VM_MIN_COUNT_NOT_REACHED).

Source of the forms of errors: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation and
https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
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

    scope: Scope = Scope.EVERYTHING
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

_CONSTRAINT = re.compile(r"constraints/([a-z]+(?:\.[a-z0-9_]+)+)", re.IGNORECASE)  # customConstraints/… as well
_RESOURCE = re.compile(
    r"'?(?:https?://\S+/)?projects/([^/']+)/((?:global|zones/[^/']+|regions/[^/']+)/\S+?)/?'?(?=[\s.,')]|\Z)"
)
_FIELD = re.compile(r"Invalid value for field '([^']+)'(?:: '([^']*)')?")
_NOT_FOUND = re.compile(r"was not found|cannot be found|is not found|does not exist|not found in zone|not found for")
_UNAUTHORIZED = "is not found or access is unauthorized"
_SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)\b")
_DISK_SIZE = re.compile(r"disk size.*cannot be smaller than the image size \((\d+)\s*GB\)", re.IGNORECASE)


@dataclass(frozen=True)
class _Case:
    """A failure with the project, location, and activity of its call."""

    failure: Failure
    project: str
    location: str
    doing: str

    @property
    def code(self) -> str:
        return " ".join(self.failure.code.split())

    @property
    def text(self) -> str:
        return " ".join(self.failure.message.split())

    @property
    def status(self) -> int:
        """Return the HTTP status of a refused call; 0 if an operation failed, or there was no answer."""
        return 0 if self.failure.of_operation else self.failure.http

    @property
    def status_note(self) -> str:
        return f" (HTTP {self.status})" if self.status else ""

    @property
    def could_not(self) -> str:
        """Return the start of a message, ``could not create 2 instances in us-central1-a``."""
        return f"could not {self.doing}" + (f" in {self.location}" if self.location else "")

    @property
    def here(self) -> str:
        return self.location or f"project {self.project}"

    @property
    def region(self) -> str:
        return region_of(self.location) if is_zone(self.location) else self.location

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
    def capacity(self) -> str:
        """Return what a zone has no capacity for: ``for g2-standard-4 with nvidia-l4:1 now``."""
        machine = " with ".join(filter(None, (self.metadata("vmType"), self.metadata("attachment", "attachments"))))
        return f"for {machine} now" if machine else f"to {self.doing}"

    @property
    def localized(self) -> str:
        """Return the localized message of the details; otherwise the message of the failure."""
        messages = (_mapping(detail.get("localizedMessage")).get("message") for detail in self.failure.details)
        return next((" ".join(str(message).split()) for message in messages if message), self.text)

    def quota(self, name: str) -> str:
        """Return an entry of the details about a quota: ``limitName``, ``limit``."""
        infos = (_mapping(detail.get("quotaInfo")).get(name) for detail in self.failure.details)
        return next((str(value) for value in infos if value is not None), self.metadata(name))

    @property
    def service(self) -> str:
        """Return the API that a failure names, ``compute.googleapis.com``."""
        named = _SERVICE.search(self.text)
        return self.metadata("service") or (named[1] if named else "compute.googleapis.com")

    @property
    def constraint(self) -> str:
        """Return the constraint of an organization policy that was violated; empty if none is named."""
        match = _CONSTRAINT.search(self.text)
        return match[1] if match else ""

    @property
    def missing(self) -> tuple[str, str]:
        """Return the type (as part of a path or field) and the name of the resource that does not exist."""
        path, named = _RESOURCE.search(self.text), _FIELD.search(self.text)
        name = path[2] if path else (named[2] or "") if named else ""
        subject = f"{path[2] if path else ''} {named[1] if named else ''}"
        return subject, name.rpartition("/")[2] or "of that name"

    @property
    def is_missing(self) -> bool:
        """Return whether the failure is that a resource does not exist."""
        missing = self.reasons & {"notFound", "NOT_FOUND", "RESOURCE_NOT_FOUND"} or self.status == 404
        return bool(missing or _NOT_FOUND.search(self.text)) and _UNAUTHORIZED not in self.text

    def _infos(self) -> Iterator[Mapping[str, Any]]:
        for detail in self.failure.details:
            if "errorInfo" in detail:
                yield _mapping(detail["errorInfo"])
            elif str(detail.get("@type", "")).endswith("ErrorInfo"):
                yield detail


@dataclass(frozen=True)
class _Rule:
    """A row of the table of rules. It matches if any of its conditions does.

    In its texts, ``{c.NAME}`` is an attribute of the case.

    Attributes:
        kind: Kind of the error.
        message: Message of the diagnosis.
        codes: Codes of the failure, or reasons in its details.
        statuses: HTTP statuses of a refused call.
        text: Regular expression for the message of the failure; case is ignored.
        when: Another condition.
        scope: Scope of the diagnosis.
        cause: Cause of the diagnosis.
        hint: Hint of the diagnosis.
        next_steps: Commands of the diagnosis; their words are separated by spaces.
        again: Options of ``fleet up`` to change.
    """

    kind: ErrorKind
    message: str
    _: KW_ONLY
    codes: Collection[str] = ()
    statuses: Collection[int] = ()
    text: str = ""
    when: Callable[[_Case], bool] = lambda _: False
    scope: Scope = Scope.EVERYTHING
    cause: str = "{c.text}"
    hint: str = ""
    next_steps: Collection[str] = ()
    again: Mapping[str, str | bool | None] | None = None

    def __call__(self, case: _Case) -> Diagnosis | None:
        """Return the diagnosis of a failure; None if the rule does not match it."""
        if not (
            not case.reasons.isdisjoint(self.codes)
            or case.status in self.statuses
            or (self.text and re.search(self.text, case.text, re.IGNORECASE))
            or self.when(case)
        ):
            return None
        message, cause, hint = (text.format(c=case) for text in (self.message, self.cause, self.hint))
        steps = [tuple(word.format(c=case) for word in command.split()) for command in self.next_steps]
        return Diagnosis(
            self.kind, message, scope=self.scope, cause=cause, hint=hint, next_steps=steps, again=self.again
        )


def diagnose(failures: Sequence[Failure], *, project: str, location: str, doing: str) -> Diagnosis:
    """Return the diagnosis of all failures of one call; the most specific failure decides.

    Args:
        failures: Failures that the answer reports.
        project: Project of the call.
        location: Zone or region of the call; empty: it has none.
        doing: Purpose of the call, ``create 2 instances``.
    """
    cases = [_Case(failure, project, location, doing) for failure in failures or (Failure(),)]
    zones = tuple(dict.fromkeys(zone for case in cases for zone in case.zones_available))
    diagnoses = (rule(case) for rule in _RULES for case in cases)
    return replace(next(filter(None, diagnoses), _unknown(cases[0])), zones=zones)


# --- credentials and permissions ----------------------------------------------------------------------------------

_LOGIN = "gcloud auth application-default login"


def grant_role(project: str, role: str) -> str:
    """Return the command line that gives the user a role; the shell inserts the account that gcloud uses."""
    words = shlex.join(["gcloud", "projects", "add-iam-policy-binding", project, "--role", role])
    return f'{words} --member="user:$(gcloud config get account)"'


def no_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that there are no Application Default Credentials."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "no Google Cloud credentials found",
        cause=_message(reason) or "GOOGLE_APPLICATION_CREDENTIALS is not set, and gcloud is not logged in",
        next_steps=[tuple(_LOGIN.split())],
    )


def expired_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that Google does not accept the credentials any more."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "Google Cloud rejected the credentials of this computer",
        cause=_message(reason) or "they have expired or were revoked",
        next_steps=[tuple(_LOGIN.split())],
    )


def no_project() -> Diagnosis:
    """Return the diagnosis that neither the options nor the credentials name a project."""
    return Diagnosis(
        ErrorKind.USAGE,
        "no Google Cloud project set",
        cause="neither --project nor the credentials name a project",
        hint="set the project: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def wrong_project(project: str, reason: str = "") -> Diagnosis:
    """Return the diagnosis that the project does not exist, or that the caller may not see it."""
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {project!r} does not exist, or these credentials cannot access it",
        cause=_message(reason),
        hint="select one of your projects: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def _message(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _login(case: _Case) -> Diagnosis | None:
    if case.status == 401 or case.reasons & {"authError", "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"}:
        return expired_credentials(case.text)
    return None


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
        cause=cause,
        hint="ask an administrator of the project for it, or add it if you have the right",
        next_steps=[grant_role(project, role_for(permission))],
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
    where = " in all regions together" if everywhere else f" in {case.region}" if case.location else ""
    return Diagnosis(
        ErrorKind.QUOTA,
        f"{case.could_not}: the quota {metric or '(unnamed)'} of project {case.project}{allows}{where}",
        scope=Scope.EVERYTHING if everywhere else Scope.REGION,
        cause=case.text,
        hint=quota_hint(metric or "of it", case.project, "" if everywhere else case.region)
        + ("" if everywhere else ", or select another region: --zone REGION"),
    )


def _is_global_quota(case: _Case) -> Diagnosis | None:
    """Diagnose a quota for all regions; it decides before a quota of one region."""
    diagnosis = _quota(case)
    return diagnosis if diagnosis is not None and diagnosis.scope is Scope.EVERYTHING else None


def _plain_number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


# --- rows of the table --------------------------------------------------------------------------------------------


def _constraint(name: str, message: str, advice: str, **rest: Any) -> _Rule:
    """Return the rule for a constraint of an organization policy.

    A managed constraint forbids the same as the legacy one: ``compute.managed.vmExternalIpAccess``.
    """
    message = f"{{c.could_not}}: the policy {{c.constraint}} {message}"
    return _Rule(
        ErrorKind.USAGE, message, when=lambda c: c.constraint.replace(".managed.", ".") == name, hint=advice, **rest
    )


def _resource(part: str, message: str, advice: str, listing: str, scope: Scope = Scope.ZONE) -> _Rule:
    """Return the rule for a missing resource whose type contains `part`; `listing` is its collection in gcloud."""
    return _Rule(
        ErrorKind.USAGE,
        message,
        when=lambda c: c.is_missing and part in c.missing[0],
        scope=scope,
        hint=advice,
        next_steps=(f"gcloud compute {listing} list --project {{c.project}}",),
    )


def _disk_too_small(case: _Case) -> Diagnosis | None:
    size = _DISK_SIZE.search(case.text)
    message = _REJECTED.format(c=case)
    return Diagnosis(ErrorKind.USAGE, message, cause=case.text, again={"--disk-size": size[1]}) if size else None


def _unknown(case: _Case) -> Diagnosis:
    """Return the diagnosis of a failure that no rule matches, with its own message."""
    label = case.code or case.status_note.strip(" ()") or "unknown error"
    return Diagnosis(
        ErrorKind.MISSING,
        f"{case.could_not}: Compute Engine rejected the request ({label})",
        cause=case.text or "no reason given",
        next_steps=[("gcloud", "compute", "operations", "list", "--project", case.project)],
    )


_ALLOW = (
    "administrators can lift it: "
    "gcloud resource-manager org-policies disable-enforce {c.constraint} --project {c.project}"
)
_EXCEPTION = "ask an administrator of the organization for an exception"
_IMAGE = "--image projects/PROJECT/global/images/family/FAMILY"
_NETWORK = ("project {c.project} has no network {c.missing[1]}", "select an existing network: --network NAME")
_WAIT = "--retry-until-up waits for capacity; or allow other zones (--zone), or another --gpu"
_RETRY = {"--retry-until-up": True}
_REJECTED = "{c.could_not}: Compute Engine rejected the request"
_INVALID = {"invalid", "badRequest", "required", "INVALID_ARGUMENT", "INVALID_USAGE", "INVALID_FIELD_VALUE"}
_INCOMPATIBLE = re.compile(
    r"not compatible|incompatible|not supported|not available for|cannot be used with", re.IGNORECASE
)
_POLICY = re.compile(r"\bpolic(?:y|ies)\b|\bconstraints?\b", re.IGNORECASE)
_TOO_FEW = ("VM_MIN_COUNT_NOT_REACHED", "MISSING")
_RATE = _Rule(
    ErrorKind.UNREACHABLE,
    "{c.could_not}: project {c.project} exceeds the rate of calls to Compute Engine",
    codes={"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"},
    statuses=(429,),
    scope=Scope.RETRY,
    hint="repeat the command in a minute",
)


def _is_unnamed_policy(case: _Case) -> bool:
    unmet = case.status == 412 or case.reasons & {"conditionNotMet", "CONDITION_NOT_MET"}
    return bool(unmet and _POLICY.search(case.text))


_RULES: tuple[Callable[[_Case], Diagnosis | None], ...] = (
    _login,
    _Rule(
        ErrorKind.MISSING,
        "project {c.project} has no billing account, which Compute Engine requires",
        codes={
            "BILLING_DISABLED",
            "billingNotEnabled",
            "billingDisabled",
            "UREQ_PROJECT_BILLING_NOT_FOUND",
            "accountDisabled",
        },
        text=r"requires billing to be enabled|has billing disabled|billing (?:is|has been) (?:disabled|not enabled)"
        r"|billing account .*\b(?:disabled|absent|closed|not found)\b",
        hint="link one of your billing accounts: gcloud billing projects link {c.project} --billing-account ID",
        next_steps=("gcloud billing accounts list",),
    ),
    _Rule(
        ErrorKind.MISSING,
        "the API {c.service} is not enabled in project {c.project}",
        codes={"accessNotConfigured", "SERVICE_DISABLED"},
        hint="it takes effect after a few minutes",
        next_steps=("gcloud services enable {c.service} --project {c.project}",),
    ),
    _project,
    # Policies of the organization.
    _constraint(
        "compute.vmExternalIpAccess",
        "forbids external addresses in project {c.project}",
        "--iap reaches the instances through Identity-Aware Proxy, without external addresses",
        again={"--iap": True},
    ),
    _constraint("compute.requireOsLogin", "requires OS Login, which rejects the fleet's own SSH key", _ALLOW),
    _constraint(
        "compute.disableGuestAttributesAccess",
        "disables guest attributes, from which the SSH host keys of the instances are read",
        _ALLOW,
    ),
    _constraint(
        "compute.trustedImageProjects",
        "does not allow images of this project",
        f"select an allowed image: {_IMAGE}",
    ),
    _constraint(
        "compute.requireShieldedVm",
        "requires an image that supports Shielded VM",
        f"select such an image: {_IMAGE}",
    ),
    _constraint(
        "gcp.resourceLocations",
        "does not allow resources in this location",
        "select an allowed region: --zone REGION",
        scope=Scope.REGION,
    ),
    _Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the organization policy {c.constraint} forbids it in project {c.project}",
        when=lambda c: bool(c.constraint),
        hint=_EXCEPTION,
        next_steps=("gcloud org-policies describe {c.constraint} --project {c.project} --effective",),
    ),
    _Rule(
        ErrorKind.USAGE,
        "{c.could_not}: a policy of the organization forbids it in project {c.project}",
        when=_is_unnamed_policy,
        hint=_EXCEPTION,
        next_steps=("gcloud org-policies list --project {c.project}",),
    ),
    _Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the service account for the instances does not exist in project {c.project}",
        text=r"service account \S+ (?:does not exist|was not found|is disabled|not found)"
        r"|of type 'serviceAccount' was not found",
        hint="select an existing account with --service-account, or remove --scopes to use none",
        next_steps=("gcloud iam service-accounts list --project {c.project}",),
    ),
    # The access token is valid, but not for Compute Engine; the roles of the caller do not matter.
    _Rule(
        ErrorKind.CREDENTIALS,
        "could not {c.doing}: the scopes of these credentials do not allow calls to Compute Engine",
        codes={"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"},
        text="insufficient authentication scopes",
        hint="on a Compute Engine instance, stop it and give it the scope cloud-platform with "
        "'gcloud compute instances set-service-account', or log in as yourself",
        next_steps=(_LOGIN,),
    ),
    _is_global_quota,
    _quota,
    _Rule(
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
    # Missing resources.
    _resource(
        "ubnetwork",
        "{c.here} has no subnetwork {c.missing[1]}",
        "select an existing subnetwork: --subnet NAME",
        "networks subnets",
        Scope.REGION,
    ),
    _resource("networks/", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource("].network", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource(
        "machineType",
        "{c.here} has no machine type {c.missing[1]}",
        "select another --zone or --machine-type",
        "machine-types",
    ),
    _resource(
        "cceleratorType",
        "{c.here} has no GPUs of type {c.missing[1]}",
        "select another --zone or --gpu",
        "accelerator-types",
    ),
    _resource(
        "diskType",
        "{c.here} has no disks of type {c.missing[1]}",
        'select another disk-type in fleet.toml, e.g. disk-type = "pd-balanced"',
        "disk-types",
    ),
    _resource(
        "mage",
        "boot image {c.missing[1]} does not exist, or these credentials cannot access it",
        f"select an existing image: {_IMAGE}",
        "images",
        Scope.EVERYTHING,
    ),
    _permission,
    # Failures of a zone.
    replace(
        _RATE,
        codes=(),
        statuses=(),
        when=lambda c: "RESOURCE_OPERATION_RATE_EXCEEDED" in c.reasons and "/global/" in c.text,
    ),
    _Rule(
        ErrorKind.CAPACITY,
        "{c.could_not}: the subnetwork has no internal addresses left",
        codes={"IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"},
        scope=Scope.ZONE,
        hint="select a subnetwork with free addresses, --subnet NAME, or another region, --zone REGION",
    ),
    *(
        _Rule(
            ErrorKind.CAPACITY,
            f"{{c.could_not}}: {why}",
            codes={code},
            text=_UNAUTHORIZED if code == "RESOURCE_NOT_FOUND" else "",
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
        }.items()
    ),
    _Rule(
        ErrorKind.MISSING,
        "{c.could_not}: the resource does not exist",
        codes={"notFound", "NOT_FOUND"},
        statuses=(404,),
        next_steps=("fleet status",),
    ),
    # Requests that Compute Engine rejects.
    _disk_too_small,
    _Rule(
        ErrorKind.USAGE,
        _REJECTED,
        text="custom (subnet ?)?mode.*subnetwork|subnetwork.*(custom (subnet ?)?mode|must be (specified|provided))",
        hint="this network requires a subnetwork: --subnet NAME",
    ),
    _Rule(
        ErrorKind.USAGE,
        _REJECTED,
        when=lambda c: bool(c.reasons & _INVALID and _INCOMPATIBLE.search(c.text)),
        hint="select another --machine-type or --gpu, or another disk-type in fleet.toml",
    ),
    _Rule(ErrorKind.USAGE, _REJECTED, codes=_INVALID, hint="change the request as the cause describes"),
    _RATE,
    _Rule(
        ErrorKind.USAGE,
        "{c.could_not}: a resource of this name already exists",
        codes={"alreadyExists", "RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"},
        statuses=(409,),
        hint="fleet up adopts the resources of the fleet, fleet down deletes them",
        next_steps=("fleet up", "fleet down"),
    ),
    # Failures that pass.
    _Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: it is used by a resource that is being created or deleted",
        codes={"resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "resourceNotReady"},
        scope=Scope.RETRY,
        hint="repeat the command",
    ),
    _Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: it was changed at the same time",
        codes={"conditionNotMet"},
        statuses=(412,),
        scope=Scope.RETRY,
        hint="repeat the command",
    ),
    _Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: Compute Engine does not respond",
        codes={"UNREACHABLE"},
        hint="check the connection to the Internet, then repeat the command",
    ),
    _Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: timed out",
        codes={"DEADLINE"},
        scope=Scope.ZONE,
        next_steps=("gcloud compute operations list --project {c.project}",),
    ),
    _Rule(
        ErrorKind.UNREACHABLE,
        "{c.could_not}: internal error of Compute Engine{c.status_note}",
        codes={"backendError", "internalError", "INTERNAL_ERROR", "INTERNAL", "UNAVAILABLE", "SERVICE_UNAVAILABLE"},
        statuses=range(500, 600),
        scope=Scope.RETRY,
        hint="repeat the command in a minute; see https://status.cloud.google.com for outages",
    ),
    # Unspecific failures: a failure with an unknown code explains more than that there are too few instances.
    lambda case: _unknown(case) if case.code not in _TOO_FEW else None,
    _Rule(
        ErrorKind.CAPACITY,
        "{c.could_not}: only some could be created, and these were deleted",
        codes=_TOO_FEW,
        scope=Scope.ZONE,
        hint=_WAIT,
        again=_RETRY,
    ),
)
