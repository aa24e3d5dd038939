"""Diagnose the errors of Compute Engine: message, scope, and what the user can do.

Sources: https://cloud.google.com/apis/design/errors and
https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from functools import partial
from typing import Any
from urllib.parse import quote

from provision.gce.catalog.names import is_zone, region_of
from provision.provider import ErrorKind, ProviderError

SILENT_ZONE = "ZONE_DID_NOT_ANSWER"
"""Code of a list that lacks the resources of a zone."""
TRIAL = "FREE_TRIAL"
"""Code of a project whose quotas are those of a free trial."""


@dataclass(frozen=True)
class Failure:
    """One failure that an answer reports.

    Attributes:
        code: Code of a failed operation, ``ZONE_RESOURCE_POOL_EXHAUSTED``; reason of an HTTP error,
            ``quotaExceeded``; ``UNREACHABLE``, ``DEADLINE``, ``MISSING``, or `SILENT_ZONE` from this program.
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


def mapping(thing: object) -> Mapping[str, Any]:
    """Return `thing` if it is an object of JSON, otherwise an empty one."""
    return thing if isinstance(thing, Mapping) else {}


def mappings(thing: object) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in a list of JSON; empty if `thing` is not a list."""
    return tuple(item for item in thing if isinstance(item, Mapping)) if isinstance(thing, Sequence) else ()


# --- failures with the circumstances of their calls ---------------------------------------------------------------

_CONSTRAINT = re.compile(r"constraints/([a-z]+(?:\.[a-z0-9_]+)+)", re.IGNORECASE)  # customConstraints/… as well
_RESOURCE = re.compile(
    r"'?(?:https?://\S+/)?projects/([^/']+)/((?:global|zones/[^/']+|regions/[^/']+)/\S+?)/?'?(?=[\s.,')]|\Z)"
)
_FIELD = re.compile(r"Invalid value for field '([^']+)'(?:: '([^']*)')?")
_NOT_FOUND = re.compile(r"was not found|cannot be found|is not found|does not exist|not found in zone|not found for")
UNAUTHORIZED = "is not found or access is unauthorized"
_SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)\b")


class Scope(Enum):
    """Scope of a failure: where another attempt would fail as well."""

    RETRY = "retry"
    ZONE = "zone"
    REGION = "region"
    EVERYTHING = "everything"


@dataclass(eq=False, kw_only=True)
class Diagnosis(ProviderError):  # it also decides where to try again
    """Explanation of a failure; its cause is in the words of Compute Engine if it reports one.

    Attributes:
        scope: Where another attempt would fail as well.
        zones: Zones that have the requested resources, according to Compute Engine.
        metric: Name of an exhausted quota.
        limit: Its limit.
    """

    scope: Scope = Scope.EVERYTHING
    zones: tuple[str, ...] = ()
    metric: str = ""
    limit: float = 0.0


@dataclass(frozen=True)
class Case:
    """A failure with the circumstances of its call.

    Attributes:
        failure: The failure.
        project: Project of the call.
        location: Zone or region of the call; empty: it has none.
        doing: Purpose of the call, ``create 2 instances``.
        member: Function that returns the caller as a member of a policy, quoted for a shell.
    """

    failure: Failure
    project: str
    location: str
    doing: str
    member: Callable[[], str]

    @property
    def code(self) -> str:
        """Return the code of the failure, on one line."""
        return " ".join(self.failure.code.split())

    @property
    def text(self) -> str:
        """Return the message of the failure, on one line."""
        return " ".join(self.failure.message.split())

    @property
    def status(self) -> int:
        """Return the HTTP status of a refused call; 0 if an operation failed, or without an answer."""
        return 0 if self.failure.of_operation else self.failure.http

    @property
    def status_note(self) -> str:
        """Return the HTTP status as the end of a message; empty if there is none."""
        return f" (HTTP {self.status})" if self.status else ""

    @property
    def could_not(self) -> str:
        """Return the start of a message, ``could not create 2 instances in us-central1-a``."""
        return f"could not {self.doing}" + (f" in {self.location}" if self.location else "")

    @property
    def here(self) -> str:
        """Return the location of the call, or its project."""
        return self.location or f"project {self.project}"

    @property
    def region(self) -> str:
        """Return the region of the call; empty if it has none."""
        return region_of(self.location) if is_zone(self.location) else self.location

    @property
    def reasons(self) -> frozenset[str]:
        """Return the code of the failure and the reasons in its details."""
        return frozenset({self.code, *(str(info.get("reason", "")) for info in self._infos())} - {""})

    def metadata(self, *names: str) -> str:
        """Return the first of the named metadata that the details contain; empty if there is none."""
        for info in self._infos():
            data = mapping(info.get("metadatas")) or mapping(info.get("metadata"))
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
        messages = (mapping(detail.get("localizedMessage")).get("message") for detail in self.failure.details)
        return next((" ".join(str(message).split()) for message in messages if message), self.text)

    def quota(self, name: str) -> str:
        """Return an entry of the details about a quota: ``limitName``, ``limit``."""
        infos = (mapping(detail.get("quotaInfo")).get(name) for detail in self.failure.details)
        return next((str(value) for value in infos if value is not None), self.metadata(name))

    @property
    def service(self) -> str:
        """Return the API that a failure names, ``compute.googleapis.com``."""
        named = _SERVICE.search(self.text)
        return self.metadata("service") or (named[1] if named else "compute.googleapis.com")

    @property
    def constraint(self) -> str:
        """Return the constraint of an organization policy that was violated; empty if none is named."""
        match = _CONSTRAINT.search(self.text) or _CONSTRAINT.search(self.metadata("customConstraints", "constraints"))
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
        return bool(missing or _NOT_FOUND.search(self.text)) and UNAUTHORIZED not in self.text

    @property
    def lacks_default_network(self) -> bool:
        """Return whether the missing resource is the network that is used by default; new projects may have none."""
        subject, name = self.missing
        return self.is_missing and name == "default" and ("networks/" in subject or "].network" in subject)

    def _infos(self) -> Iterator[Mapping[str, Any]]:
        for detail in self.failure.details:
            if "errorInfo" in detail:
                yield mapping(detail["errorInfo"])
            elif str(detail.get("@type", "")).endswith("ErrorInfo"):
                yield detail


Diagnose = Callable[[Case], Diagnosis | None]
"""A row of the table of rules."""


@dataclass(frozen=True)
class Rule:
    """A row of the table of rules. It matches if any of its conditions does.

    In its texts, ``{c.NAME}`` is an attribute of the case, and ``{m[NUMBER]}`` a group of `text`.

    Attributes:
        kind: Kind of the error.
        message: Message of the diagnosis.
        codes: Codes of the failure, or reasons in its details, separated by spaces.
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
    codes: str = ""
    statuses: Collection[int] = ()
    text: str = ""
    when: Callable[[Case], bool] = lambda _: False
    scope: Scope = Scope.EVERYTHING
    cause: str = "{c.text}"
    hint: str = ""
    next_steps: Collection[str] = ()
    again: Mapping[str, str | bool | None] | None = None

    def __call__(self, case: Case) -> Diagnosis | None:
        """Return the diagnosis of a failure; None if the rule does not match it."""
        match = re.search(self.text, case.text, re.IGNORECASE) if self.text else None
        is_coded = case.status in self.statuses or not case.reasons.isdisjoint(self.codes.split())
        if not (match or is_coded or self.when(case)):
            return None
        fill = partial(str.format, c=case, m=match)
        return Diagnosis(
            self.kind,
            fill(self.message),
            scope=self.scope,
            cause=fill(self.cause),
            hint=fill(self.hint),
            next_steps=[tuple(fill(word) for word in command.split()) for command in self.next_steps],
            again={name: fill(value) if isinstance(value, str) else value for name, value in self.again.items()}
            if self.again
            else None,
        )


# --- roles --------------------------------------------------------------------------------------------------------

UNKNOWN_MEMBER = '"user:$(gcloud config get account)"'
"""The account that gcloud uses, for credentials whose account cannot be determined; the shell inserts it."""

_CHANGES = ("create", "delete", "update", "patch", "expandIpCidrRange", "setLabels", "deprecate")
# fmt: off
_ROLES = {
    "iam.serviceAccountUser": ["iam.serviceAccounts."],
    "serviceusage.serviceUsageConsumer": ["serviceusage."],
    "iap.tunnelResourceAccessor": ["iap."],
    "browser": ["resourcemanager."],
    "billing.viewer": ["billing."],
    "orgpolicy.policyViewer": ["orgpolicy."],
    "compute.securityAdmin": ["compute.firewalls.", "compute.networks.updatePolicy"],
    "compute.networkAdmin": [f"compute.{noun}.{verb}" for noun in ("networks", "subnetworks") for verb in _CHANGES],
    "compute.networkViewer": ["compute.networks.getEffectiveFirewalls", "compute.routers."],
    "compute.networkUser": ["compute.networks.", "compute.subnetworks."],
    "compute.storageAdmin": [f"compute.images.{verb}" for verb in _CHANGES],
    "compute.imageUser": ["compute.images."],
    "compute.osLogin": ["compute.instances.osLogin"],
    "compute.osAdminLogin": ["compute.instances.osAdminLogin"],
    "compute.instanceAdmin.v1": ["compute.instances.", "compute.disks."],
    "compute.viewer": ["compute.projects.get", "compute.regions.", "compute.zones."],
}
"""Predefined roles by beginnings of permissions; the first match decides.

Source: https://cloud.google.com/compute/docs/access/iam.
"""
# fmt: on


def grant_role(group: str, resource: Sequence[str], role: str, member: str) -> str:
    """Return the command line that gives a member a role.

    Args:
        group: Commands of gcloud for the type of the resource, ``projects``, ``iam service-accounts``.
        resource: Operands and options that select the resource.
        role: ``roles/compute.admin``.
        member: Member of the policy, quoted for a shell: ``user:me@example.com``.
    """
    words = shlex.join(["gcloud", *group.split(), "add-iam-policy-binding", *resource, "--role", role])
    return f"{words} --member={member}"


def role_for(permission: str) -> str:
    """Return the narrowest predefined role with `permission` that a user of this program is likely to get."""
    pairs = ((prefix, role) for role, prefixes in _ROLES.items() for prefix in prefixes)
    match = (role for prefix, role in pairs if permission.lower().startswith(prefix.lower()))
    return f"roles/{next(match, 'compute.admin')}"


# --- diagnoses that are computed ----------------------------------------------------------------------------------

_LOGIN = "gcloud auth application-default login"
VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
MISSING, UNUSABLE, EXPIRED = "missing", "unusable", "expired"
_PROBLEMS = {
    MISSING: ("no Google Cloud credentials found", f"{VARIABLE} is not set, and gcloud is not logged in"),
    UNUSABLE: ("the Google Cloud credentials of this computer cannot be used", ""),
    EXPIRED: ("Google Cloud rejected the credentials of this computer", "they have expired or were revoked"),
}
"""Sentence and default cause by the problem of credentials."""


def credentials_error(problem: str, reason: str = "", file: str = "") -> Diagnosis:
    """Return the diagnosis that the credentials of this computer are missing, unusable, or expired.

    Args:
        problem: `MISSING`, `UNUSABLE`, or `EXPIRED`.
        reason: Message of Google's library.
        file: The file that GOOGLE_APPLICATION_CREDENTIALS names; empty: none.
    """
    message, default = _PROBLEMS[problem]
    cause = _first_sentence(reason) or default
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        message,
        cause=cause,
        hint=f"{VARIABLE} has precedence over a login: {file}" if file and file not in cause else "",
        next_steps=[*([f"unset {VARIABLE}"] if file else []), tuple(_LOGIN.split())],
    )


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _login(case: Case) -> Diagnosis | None:
    if case.status == 401 or case.reasons & {"authError", "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"}:
        return credentials_error(EXPIRED, case.text)
    return None


def no_project() -> Diagnosis:
    """Return the diagnosis that neither the options nor the credentials name a project."""
    cause = "neither --project nor the credentials name a project"
    hint = "set the project: --project ID"
    steps = [("gcloud", "projects", "list")]
    return Diagnosis(ErrorKind.USAGE, "no Google Cloud project set", cause=cause, hint=hint, next_steps=steps)


_NO_PROJECT = re.compile(
    r"The resource 'projects/[^/']+' was not found|Failed to find project|Unknown project"
    r"|Project \S+ not found or deleted|Invalid value for project\b",
    re.IGNORECASE,
)
_NAMED_PROJECT = re.compile(r"The resource 'projects/([^/']+)' was not found")


def _project(case: Case) -> Diagnosis | None:
    """Diagnose that a project does not exist, or that the caller may not see it."""
    is_invalid = case.reasons & {"CONSUMER_INVALID", "RESOURCE_PROJECT_INVALID"}
    if not is_invalid and not (case.status in {400, 403, 404} and _NO_PROJECT.search(case.text)):
        return None
    named = _NAMED_PROJECT.search(case.text)
    other = named[1] if named and named[1] != case.project and not named[1].isdecimal() else ""
    mine, theirs = (
        "select one of your projects: --project ID",
        "check the project in --network, --subnet, --image, or",
    )
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {(other or case.project)!r} does not exist, or these credentials cannot access it",
        cause=_first_sentence(case.text),
        hint=theirs if other else mine,
        next_steps=[("gcloud", "projects", "list")],
    )


_QUOTA = re.compile(r"Quota '([A-Z0-9_a-z-]+)' exceeded\.?(?:\s+Limit:\s*([0-9]+(?:\.[0-9]+)?))?")
_GLOBAL_QUOTAS = frozenset({"GPUS_ALL_REGIONS", "GPUS-ALL-REGIONS-per-project", "CPUS_ALL_REGIONS"})
_ADVICE = {
    "GPUS_ALL_REGIONS": "; the answer takes minutes to days, and an account in its free trial must be upgraded first",
    "SSD_TOTAL_GB": ", or use --disk-type pd-standard if the machine type supports it, or a smaller --disk-size",
}
_OVER_QUOTA = re.compile(r"exceed\w* (?:the )?quota limit", re.IGNORECASE)


def quota_page(project: str) -> str:
    """Return the URL of the page on which a larger quota is requested."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={quote(project)}"


def quota_hint(metric: str, project: str, region: str = "") -> str:
    """Return a hint how to request a larger quota, or how to use another one."""
    where = f" in {region}" if region else ""
    return f"request more {metric}{where} at {quota_page(project)}{_ADVICE.get(metric, '')}"


def quota_request(metric: str, project: str, region: str, limit: float) -> str:
    """Return the command line that requests a quota; the account of gcloud is asked if Google has a question.

    Args:
        metric: ``NVIDIA_T4_GPUS``.
        project: The project.
        region: Region of the quota; empty: it counts all regions together.
        limit: The limit to request.

    Source: https://cloud.google.com/docs/quotas/gcloud-cli-examples.
    """
    quota = metric.replace("_", "-") + ("-per-project-region" if region else "-per-project")
    words = ["gcloud", "beta", "quotas", "preferences", "create", "--service", "compute.googleapis.com"]
    words += ["--project", project, "--quota-id", quota, "--preferred-value", f"{limit:g}"]
    words += ["--dimensions", f"region={region}"] if region else []
    return f'{shlex.join(words)} --email="$(gcloud config get account)"'


def _quota(case: Case) -> Diagnosis | None:
    exhausted = "RESOURCE_EXHAUSTED" in case.reasons and _OVER_QUOTA.search(case.text)
    if not case.reasons & {"QUOTA_EXCEEDED", "quotaExceeded"} and (not exhausted or "per minute" in case.text):
        return None
    named = _QUOTA.search(case.text)
    metric = (named[1] if named else "") or case.quota("limitName") or case.quota("metricName").rpartition("/")[2]
    limit = (named[2] if named and named[2] else "") or case.quota("limit")
    with contextlib.suppress(ValueError):
        limit = f"{float(limit):g}"
    allows = f" allows {limit}" if limit else " is used up"
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
        metric=metric,
        limit=float(named[2]) if named and named[2] else 0.0,
    )


def _is_global_quota(case: Case) -> Diagnosis | None:
    """Diagnose a quota for all regions; it decides before a quota of one region."""
    diagnosis = _quota(case)
    return diagnosis if diagnosis is not None and diagnosis.scope is Scope.EVERYTHING else None


_PERMISSION = re.compile(
    r"Required '([a-zA-Z0-9.]+)' permission|[Pp]ermission '?([a-z][a-zA-Z0-9]*\.[a-zA-Z0-9.]+)'?"
)
_REFUSED = re.compile(
    r"(?:permission for|denied on resource) '(?://[a-z]+\.googleapis\.com/)?projects/([^/']+)/?([^']*)'"
)
_SUBNETWORK = re.compile(r"regions/([^/]+)/subnetworks/([^/]+)")
_ACCOUNT = re.compile(r"service account ['\"]?([^\s'\"]+@[^\s'\"]*[^\s'\".,])")


def missing_permission(
    permission: str, project: str, *, doing: str, member: str, cause: str = "", path: str = ""
) -> Diagnosis:
    """Return the diagnosis that the caller lacks a permission.

    Args:
        permission: ``compute.instances.create``.
        project: Project of the resource, which differs from that of the call in a Shared VPC.
        doing: Purpose of the call, ``create 2 instances``.
        member: The caller as a member of a policy, quoted for a shell.
        cause: Message of the answer.
        path: Path of the resource in its project, ``regions/us-central1/subnetworks/s``; empty: the project.
    """
    role = role_for(permission)
    subnetwork = _SUBNETWORK.match(path)
    if subnetwork and role == "roles/compute.networkUser":
        operands = [subnetwork[2], "--region", subnetwork[1], "--project", project]
        grant = grant_role("compute networks subnets", operands, role, member)
    else:
        grant = grant_role("projects", [project], role, member)
    message = f"could not {doing}: these credentials lack the permission {permission} in project {project}"
    hint = "ask an administrator of the project for it, or add it if you have the right"
    return Diagnosis(ErrorKind.CREDENTIALS, message, cause=cause, hint=hint, next_steps=[grant])


def permission_denied(case: Case) -> Diagnosis | None:
    """Return the diagnosis that the caller lacks a permission or a role; None if the failure is another."""
    named = _PERMISSION.search(case.text)
    permission = case.metadata("permission") or (named and (named[1] or named[2])) or ""
    denied = case.reasons & {"IAM_PERMISSION_DENIED", "PERMISSIONS_ERROR", "USER_PROJECT_DENIED"}
    denied |= case.reasons & {"forbidden", "PERMISSION_DENIED"}
    if "USER_PROJECT_DENIED" in denied and not permission:
        permission = "serviceusage.services.use"
    if permission and (case.status == 403 or denied or named):
        refused = _REFUSED.search(case.text)
        project, path = (refused[1], refused[2]) if refused else (case.project, "")
        return missing_permission(
            permission.rstrip("."), project, doing=case.doing, member=case.member(), cause=case.text, path=path
        )
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


def _service_account(case: Case) -> Diagnosis | None:
    """Diagnose that the caller may not give the service account to instances."""
    refused = "SERVICE_ACCOUNT_ACCESS_DENIED" in case.reasons or "iam.serviceAccountUser" in case.text
    if not refused and "does not have access to service account" not in case.text:
        return None
    named, role = _ACCOUNT.search(case.text), "roles/iam.serviceAccountUser"
    group, operands = (
        ("iam service-accounts", [named[1], "--project", case.project]) if named else ("projects", [case.project])
    )
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {case.doing}: these credentials lack the permission iam.serviceAccounts.actAs"
        + (f" on the service account {named[1]}" if named else f" in project {case.project}"),
        cause=case.text,
        hint="ask an administrator of the project for it, or use no service account: remove --scopes",
        next_steps=[grant_role(group, operands, role, case.member())],
    )


_POLICY = re.compile(r"\bpolic(?:y|ies)\b|\bconstraints?\b", re.IGNORECASE)
_DENIED = re.compile(r"denied by (?:custom )?org(?:anization)? polic", re.IGNORECASE)


def _is_unnamed_policy(case: Case) -> bool:
    unmet = case.status == 412 or case.reasons & {"conditionNotMet", "CONDITION_NOT_MET"}
    return bool((unmet and _POLICY.search(case.text)) or _DENIED.search(case.text))


def _unknown(case: Case) -> Diagnosis:
    """Return the diagnosis of a failure that no rule matches, with its own message."""
    label = case.code or case.status_note.strip(" ()") or "unknown error"
    return Diagnosis(
        ErrorKind.MISSING,
        f"{case.could_not}: Compute Engine rejected the request ({label})",
        cause=case.text or "no reason given",
        next_steps=[("gcloud", "compute", "operations", "list", "--project", case.project)],
    )


# --- the table ----------------------------------------------------------------------------------------------------

_USAGE, _MISSING, _CREDENTIALS = ErrorKind.USAGE, ErrorKind.MISSING, ErrorKind.CREDENTIALS
_CAPACITY, _UNREACHABLE = ErrorKind.CAPACITY, ErrorKind.UNREACHABLE
_RETRIED: dict[str, Any] = {
    "hint": "--retry-until-up waits for capacity; or allow other zones (--zone), or another --gpu",
    "again": {"--retry-until-up": True},
    "scope": Scope.ZONE,
}
_IMAGE = "--image projects/PROJECT/global/images/family/FAMILY"
_INVALID = "invalid badRequest required INVALID_ARGUMENT INVALID_USAGE INVALID_FIELD_VALUE"
_INCOMPATIBLE = re.compile(
    r"not compatible|incompatible|not supported|not available for|cannot be used with", re.IGNORECASE
)
_ALLOW = "an administrator of the organization can lift it for the project"
_EXCEPTION = "ask an administrator of the organization for an exception"
_LIFT = "gcloud org-policies reset {c.constraint} --project {c.project}"
_DESCRIBE = "gcloud org-policies describe {c.constraint} --project {c.project} --effective"
_REJECTED = "{c.could_not}: Compute Engine rejected the request"


def _policy(name: str, message: str, hint: str, **rest: Any) -> Rule:
    """Return the row for a constraint of an organization policy; a managed one of the same name forbids the same.

    Args:
        name: The constraint, without the mark of managed ones.
        message: What the policy requires or forbids.
        hint: Hint of the diagnosis.
        rest: Other attributes of the row.
    """
    message = f"{{c.could_not}}: the policy {{c.constraint}} {message}"
    matches = lambda c: c.constraint.replace(".managed.", ".") == name  # noqa: E731
    return Rule(_USAGE, message, when=matches, hint=hint, **rest)


def _resource(part: str, message: str, hint: str, listing: str, scope: Scope = Scope.ZONE) -> Rule:
    """Return the row for a missing resource whose type contains `part`; `listing` is its collection in gcloud."""
    steps = (f"gcloud compute {listing} list --project {{c.project}}",)
    matches = lambda c: c.is_missing and part in c.missing[0]  # noqa: E731
    return Rule(_USAGE, message, when=matches, scope=scope, hint=hint, next_steps=steps)


def _elsewhere(code: str, why: str, text: str = "") -> Rule:
    """Return the row for a failed operation that may succeed in another zone."""
    return Rule(_CAPACITY, f"{{c.could_not}}: {why}", codes=code, text=text, **_RETRIED)


# fmt: off
RATE = Rule(_UNREACHABLE, "{c.could_not}: project {c.project} exceeds the rate of calls to Compute Engine",
    codes="rateLimitExceeded userRateLimitExceeded RATE_LIMIT_EXCEEDED RESOURCE_EXHAUSTED", statuses=(429,),
    scope=Scope.RETRY, hint="repeat the command in a minute")

_NETWORK = ("project {c.project} has no network {c.missing[1]}", "select an existing network: --network NAME")

TOO_FEW = Rule(_CAPACITY, "{c.could_not}: only some could be created, and these were deleted",
    codes="VM_MIN_COUNT_NOT_REACHED MISSING", **_RETRIED)

_RULES: tuple[Diagnose, ...] = (
    # Credentials. The access token may be valid, but not for Compute Engine; the roles of the caller do not matter.
    _login,
    Rule(_CREDENTIALS, "could not {c.doing}: the scopes of these credentials do not allow calls to Compute Engine",
        codes="insufficientPermissions ACCESS_TOKEN_SCOPE_INSUFFICIENT", text="insufficient authentication scopes",
        hint="on a Compute Engine instance, stop it and give it the scope cloud-platform with "
        "'gcloud compute instances set-service-account', or log in as yourself", next_steps=(_LOGIN,)),
    # The project. A missing quota project is also reported as a disabled API: of the project of gcloud itself.
    Rule(_MISSING, "project {c.project} has no billing account, which Compute Engine requires",
        codes="BILLING_DISABLED billingNotEnabled billingDisabled UREQ_PROJECT_BILLING_NOT_FOUND accountDisabled",
        text=r"requires billing to be enabled|has billing disabled|billing (?:is|has been) (?:disabled|not enabled)"
        r"|billing account .*\b(?:disabled|absent|closed|not found)\b",
        hint="link one of your billing accounts: gcloud billing projects link {c.project} --billing-account ID",
        next_steps=("gcloud billing accounts list",)),
    # How to upgrade: https://cloud.google.com/free/docs/free-cloud-features#how-to-upgrade.
    Rule(_MISSING, "the billing account of project {c.project} is in its free trial, which has no GPUs",
        codes=TRIAL, text=r"billing account is (?:currently )?in the free tier|free[- ]trial",
        hint="upgrade it to a paid account, which keeps the credit, at "
        "https://console.cloud.google.com/billing/linkedaccount?project={c.project}, then request a quota for GPUs",
        next_steps=("gcloud billing projects describe {c.project}",)),
    Rule(_CREDENTIALS,
        "{c.could_not}: these credentials do not name the project to which calls to {c.service} are charged",
        text=r"requires a quota project, which is not set", hint="set it, and enable the API in it",
        next_steps=("gcloud auth application-default set-quota-project {c.project}",
        "gcloud services enable {c.service} --project {c.project}")),
    Rule(_MISSING, "the API {c.service} is not enabled in project {c.project}",
        codes="accessNotConfigured SERVICE_DISABLED", hint="it takes effect after a few minutes",
        next_steps=("gcloud services enable {c.service} --project {c.project}",)),
    _project,
    # Organization policies. With Secure Boot, the kernel rejects the unsigned modules of NVIDIA's driver.
    _policy("compute.vmExternalIpAccess", "forbids external addresses in project {c.project}",
        "--iap reaches the instances through Identity-Aware Proxy, without external addresses",
        again={"--iap": True}),
    _policy("compute.requireOsLogin", "requires OS Login",
        "--os-login imports the fleet's SSH key into your OS Login profile", again={"--os-login": True}),
    _policy("compute.disableGuestAttributesAccess",
        "disables guest attributes, from which the SSH host keys of the instances are read", _ALLOW,
        next_steps=(_LIFT,)),
    _policy("compute.requireShieldedVm",
        "requires Secure Boot, which is off because the NVIDIA driver of the images does not load with it", _ALLOW,
        next_steps=(_LIFT,)),
    _policy("gcp.resourceLocations", "does not allow resources in this location",
        "select an allowed region: --zone REGION", scope=Scope.REGION, next_steps=(_DESCRIBE,)),
    Rule(_USAGE, "{c.could_not}: the organization policy {c.constraint} forbids it in project {c.project}",
        when=lambda c: bool(c.constraint), hint=_EXCEPTION, next_steps=(_DESCRIBE,)),
    Rule(_USAGE, "{c.could_not}: a policy of the organization forbids it in project {c.project}",
        when=_is_unnamed_policy, hint=_EXCEPTION, next_steps=("gcloud org-policies list --project {c.project}",)),
    # Service accounts and keys.
    Rule(_USAGE, "{c.could_not}: the service account for the instances does not exist in project {c.project}",
        text=r"service account \S+ (?:does not exist|was not found|is disabled|not found)"
        r"|of type 'serviceAccount' was not found",
        hint="select an existing account with --service-account, or remove --scopes to use none",
        next_steps=("gcloud iam service-accounts list --project {c.project}",)),
    _service_account,
    # Quotas and capacity.
    _is_global_quota,
    _quota,
    Rule(_CAPACITY, "{c.here} has no capacity {c.capacity}", cause="{c.localized}",
        codes="ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS RESOURCE_POOL_EXHAUSTED "
        "insufficientCapacity resource_availability stockout",
        text=r"does not have enough resources available|STOCKOUT|is currently unavailable in the", **_RETRIED),
    Rule(_USAGE, "{c.could_not}: the reservation does not exist, is for other machines, or is not selected by name",
        codes="RESERVATION_NOT_FOUND",
        text=r"\breservations?\b.*\b(?:not found|does not exist|not exist|can ?not be targeted)"
        r"|match the properties of the reservations?",
        hint="a reservation is in one zone and one project, and is selected by name only if it requires this",
        next_steps=("gcloud compute reservations list --project {c.project}",)),
    # Resources that do not exist.
    _resource("ubnetwork", "{c.here} has no subnetwork {c.missing[1]}",
        "select an existing subnetwork: --subnet NAME", "networks subnets", Scope.REGION),
    Rule(_USAGE, "project {c.project} has no network default", when=lambda c: c.lacks_default_network,
        hint="create it, or select an existing network: --network NAME",
        next_steps=("gcloud compute networks create default --subnet-mode=auto --project {c.project}",
        "gcloud compute networks list --project {c.project}")),
    _resource("networks/", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource("].network", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource("machineType", "{c.here} has no machine type {c.missing[1]}",
        "select another --zone or --machine-type", "machine-types"),
    _resource("cceleratorType", "{c.here} has no GPUs of type {c.missing[1]}", "select another --zone or --gpu",
        "accelerator-types"),
    _resource("diskType", "{c.here} has no disks of type {c.missing[1]}",
        'select another disk-type in fleet.toml, e.g. disk-type = "pd-balanced"', "disk-types"),
    _resource("mage", "boot image {c.missing[1]} does not exist, or these credentials cannot access it",
        f"select an existing image: {_IMAGE}", "images", Scope.EVERYTHING),
    permission_denied,
    # The code UNSUPPORTED_OPERATION also means that instances were preempted during their creation.
    Rule(_USAGE, _REJECTED,
        when=lambda c: bool(c.reasons & {*_INVALID.split(), "UNSUPPORTED_OPERATION"})
        and _INCOMPATIBLE.search(c.text) is not None,
        hint="select another --machine-type or --gpu, or another disk-type in fleet.toml",
        next_steps=("gcloud compute machine-types list --project {c.project}",)),
    # Other zones may do.
    replace(RATE, codes="", statuses=(),
        when=lambda c: "RESOURCE_OPERATION_RATE_EXCEEDED" in c.reasons and "/global/" in c.text),
    Rule(_CAPACITY, "{c.could_not}: the subnetwork has no internal addresses left",
        codes="IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS", scope=Scope.ZONE,
        hint="select a subnetwork with free addresses, --subnet NAME, or another region, --zone REGION"),
    _elsewhere("CONDITION_NOT_MET", "a condition of Compute Engine is not met"),
    _elsewhere("RESOURCE_NOT_FOUND", "a required resource does not exist", UNAUTHORIZED),
    _elsewhere("RESOURCE_NOT_READY", "a resource of this name is still being stopped or deleted"),
    _elsewhere("RESOURCE_OPERATION_RATE_EXCEEDED", "the rate of changes is limited"),
    _elsewhere("UNSUPPORTED_OPERATION", "instances were preempted during their creation"),
    _elsewhere("PREEMPTED", "instances were preempted during their creation", "failed to start due to preemption"),
    # Requests that are rejected.
    Rule(_MISSING, "{c.could_not}: the resource does not exist", codes="notFound NOT_FOUND", statuses=(404,),
        next_steps=("fleet status",)),
    Rule(_USAGE, _REJECTED, text=r"disk size.*cannot be smaller than the image size \((\d+)\s*GB\)",
        again={"--disk-size": "{m[1]}"}),
    Rule(_USAGE, _REJECTED, hint="this network requires a subnetwork: --subnet NAME",
        text="custom (subnet ?)?mode.*subnetwork|subnetwork.*(custom (subnet ?)?mode|must be (specified|provided))"),
    Rule(_USAGE, _REJECTED, codes=_INVALID, hint="change the request as the cause describes"),
    RATE,
    Rule(_USAGE, "{c.could_not}: a resource of this name already exists",
        codes="alreadyExists RESOURCE_ALREADY_EXISTS ALREADY_EXISTS", statuses=(409,),
        hint="fleet up adopts the resources of the fleet, fleet down deletes them",
        next_steps=("fleet up", "fleet down")),
    # Failures that pass.
    Rule(_UNREACHABLE, "{c.could_not}: it is used by a resource that is being created or deleted",
        codes="resourceInUseByAnotherResource RESOURCE_IN_USE_BY_ANOTHER_RESOURCE resourceNotReady",
        scope=Scope.RETRY, hint="repeat the command"),
    Rule(_UNREACHABLE, "{c.could_not}: it was changed at the same time", codes="conditionNotMet", statuses=(412,),
        scope=Scope.RETRY, hint="repeat the command"),
    Rule(_UNREACHABLE, "{c.could_not}: Compute Engine does not respond", codes="UNREACHABLE",
        hint="check the connection to the Internet, then repeat the command"),
    Rule(_UNREACHABLE, "{c.could_not}: {c.text}, and may have instances of the fleet", codes=SILENT_ZONE, cause="",
        hint="repeat the command when the zone answers; see https://status.cloud.google.com for outages"),
    Rule(_UNREACHABLE, "{c.could_not}: timed out", codes="DEADLINE", scope=Scope.ZONE,
        next_steps=("gcloud compute operations list --project {c.project}",)),
    Rule(_UNREACHABLE, "{c.could_not}: internal error of Compute Engine{c.status_note}",
        codes="backendError internalError INTERNAL_ERROR INTERNAL UNAVAILABLE SERVICE_UNAVAILABLE",
        statuses=range(500, 600), scope=Scope.RETRY,
        hint="repeat the command in a minute; see https://status.cloud.google.com for outages"),
    # A failure with an unknown code explains more than that there are too few instances.
    lambda case: _unknown(case) if case.code not in TOO_FEW.codes.split() else None,
    TOO_FEW,
)
"""The rows, the most decisive one first: a cause, the kind of the error, its sentence, and what is next.

The first row that matches any failure of a call decides, because Compute Engine often puts the least specific failure
first (VM_MIN_COUNT_NOT_REACHED).
"""
# fmt: on


def diagnose(
    failures: Sequence[Failure],
    *,
    project: str,
    location: str,
    doing: str,
    member: Callable[[], str] = lambda: UNKNOWN_MEMBER,
) -> Diagnosis:
    """Return the diagnosis of all failures of one call; the most specific failure decides.

    Args:
        failures: Failures that the answer reports.
        project: Project of the call.
        location: Zone or region of the call; empty: it has none.
        doing: Purpose of the call, ``create 2 instances``.
        member: Function that returns the caller as a member of a policy, quoted for a shell.
    """
    cases = [Case(failure, project, location, doing, member) for failure in failures or (Failure(),)]
    zones = tuple(dict.fromkeys(zone for case in cases for zone in case.zones_available))
    diagnoses = (rule(case) for rule in _RULES for case in cases)
    return replace(next(filter(None, diagnoses), _unknown(cases[0])), zones=zones)
