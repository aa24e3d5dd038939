"""Failures with the circumstances of their calls, and rules that diagnose them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from provision.gce.catalog.locations import is_zone, region_of
from provision.gce.diagnosis.failures import Failure, mapping
from provision.provider import ErrorKind, ProviderError

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
class Diagnosis(ProviderError):  # noqa: N818 - it also decides where to try again
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
        """Return the HTTP status of a refused call; 0 if an operation failed, or there was no answer."""
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
    when: Callable[[Case], bool] = lambda _: False
    scope: Scope = Scope.EVERYTHING
    cause: str = "{c.text}"
    hint: str = ""
    next_steps: Collection[str] = ()
    again: Mapping[str, str | bool | None] | None = None

    def __call__(self, case: Case) -> Diagnosis | None:
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


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
