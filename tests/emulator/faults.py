"""Faults by rule: which call fails, when, and how. The texts of the errors are in ``data/errors.json``."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tests.emulator import messages
from tests.emulator.catalog import ZONES
from tests.emulator.messages import REFUSALS, Failure, Refusal

if TYPE_CHECKING:
    from tests.emulator.blueprint import Blueprint

Json = dict[str, Any]
BULK = "compute.instances.bulkInsert"
CREATING = ("compute.instances.insert", BULK)
_HTTP = ("401", "403-disabled", "403-forbidden", "403-rate", "404", "409", "412", "429", "500", "503", "quota-http")
KINDS: dict[str, str] = {
    **dict.fromkeys((*_HTTP, "http", "reset", "lost", "slow"), "calls"),
    **dict.fromkeys(("operation-error", "fails-after", "slow-operation"), "operations"),
    **dict.fromkeys(("stockout", "stockout-plain", "preempted", "quota"), "starts"),
    "disk-left": "creations",
    **dict.fromkeys(("partial", "partial-left"), "bulk"),
    "invalid-grant": "tokens",
}
"""The calls that each kind of fault can strike."""
_OF_TOKENS = ("invalid-grant", "500", "503", "reset", "lost", "slow")


@dataclass
class Rule:
    """One fault, and when it strikes.

    Attributes:
        kind: One of KINDS. ``reset``: the connection breaks before any effect. ``lost``: the effect happens, the
            answer does not arrive. ``slow``: the answer takes `seconds` more; ``slow-operation``: the operation does.
            ``partial``: a bulk insert makes `created` instances, fails and deletes them; ``partial-left``: and leaves
            them. ``disk-left``: creation fails and leaves the boot disks. ``operation-error``: the operation fails
            without an effect; ``fails-after``: after its effect.
        match: Method id or glob, ``compute.instances.*``; ``oauth.token`` is the token endpoint.
        zone: Only in this zone or region; empty: anywhere.
        nth: Not before the nth matching call.
        times: So often; 0: for ever.
        seconds: Of ``slow`` and ``slow-operation``.
        zones_available: Of ``stockout``.
        metric: Of the quota.
        limit: Of the quota.
        created: Instances that ``partial`` makes; 0: half of them.
        permission: Of ``403-forbidden``.
        service: Of ``403-disabled``.
        resource: Of ``404`` and ``409``.
        constraint: Of ``412``.
        code: Of ``operation-error``.
        status: Of ``http``.
        reason: Of ``http``.
        message: Of ``http`` and ``operation-error``.
        body: Of these two: the whole error, with the HTTP status `status`; empty: made of the others.
    """

    kind: str
    match: str = "compute.*"
    zone: str = ""
    nth: int = 1
    times: int = 1
    seconds: float = 1.0
    zones_available: str = ""
    metric: str = "GPUS_ALL_REGIONS"
    limit: float = 0.0
    created: int = 0
    permission: str = "compute.instances.create"
    service: str = "compute.googleapis.com"
    resource: str = ""
    constraint: str = "constraints/compute.vmExternalIpAccess"
    code: str = "INTERNAL_ERROR"
    status: int = 400
    reason: str = "badRequest"
    message: str = "Internal error. Please try again or contact Google Support."
    body: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are {', '.join(KINDS)}")
        self.seen = 0
        self.struck = 0

    def concerns(self, method: str, place: str, makes_operation: bool) -> bool:
        """Return whether the rule applies to a call."""
        is_named = fnmatchcase(method, self.match) and self._can_strike(method, makes_operation)
        return is_named and self.zone in ("", place)

    def strikes(self) -> bool:
        """Return whether it applies this time, given a call that it concerns."""
        self.seen += 1
        if self.seen < self.nth or (self.times and self.struck >= self.times):
            return False
        self.struck += 1
        return True

    def refusal(self, project: str, place: str) -> Refusal | None:
        """Return the HTTP error that it is; None: it is none."""
        if self.kind == "http":
            refusal = Refusal(self.status, self.reason, self.message)
            refusal.body = self.body or refusal.body
            return refusal
        if self.kind not in REFUSALS:
            return None
        values = {**asdict(self), "project": project, "path": f"projects/{project}", "zone": place}
        values["resource"] = self.resource or f"projects/{project}"
        values["title"] = "Compute Engine API" if self.service.startswith("compute.") else self.service
        everywhere = "ALL_REGIONS" in self.metric
        values["where"] = "globally" if everywhere else f"in region {ZONES.get(place, place)}"
        return messages.refusal(self.kind, **values)

    def failure(self, drawn: Blueprint | None = None) -> Failure | None:
        """Return the failure of an operation before its effect, or of a machine; None: it does not fail."""
        if self.kind == "operation-error":
            if self.body:
                return Failure(tuple(self.body["errors"]), self.status)
            return messages.failure(self.kind, code=self.code, message=self.message)
        if drawn is None:
            return None
        if self.kind == "quota":
            return messages.quota(self.metric, self.limit, "" if "ALL_REGIONS" in self.metric else drawn.region)
        if self.kind in ("stockout-plain", "preempted"):
            return messages.failure(self.kind, project=drawn.project, zone=drawn.zone)
        return drawn.stockout(self.zones_available) if self.kind in ("stockout", "disk-left") else None

    def _can_strike(self, method: str, makes_operation: bool) -> bool:
        if method == "oauth.token":
            return self.kind in _OF_TOKENS
        return {
            "calls": True,
            "operations": makes_operation,
            "starts": method in CREATING or method == "compute.instances.start",
            "creations": method in CREATING,
            "bulk": method == BULK,
            "tokens": False,
        }[KINDS[self.kind]]


class Faults:
    """The rules in force; of those that concern a call, the first that strikes wins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []

    def add(self, kind: str, match: str = "compute.*", **settings: Any) -> Rule:
        """Put a rule in force; its fields are those of Rule.

        Raises:
            ValueError: the kind is unknown.
        """
        rule = Rule(kind, match, **settings)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Put no rule in force."""
        with self._lock:
            self._rules.clear()

    def draw(self, method: str, *, place: str = "", makes_operation: bool = False) -> Rule | None:
        """Return the fault that strikes a call; `place` is its zone or region."""
        with self._lock:
            for rule in self._rules:
                if rule.concerns(method, place, makes_operation) and rule.strikes():
                    return rule
        return None
