"""Declaration of the rules: a rule is a function that yields violations, with its name and its texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from train.lint.finding import Finding, Severity
from train.lint.interpreter.values import Call, Location
from train.lint.subject import Subject

ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


@dataclass(frozen=True)
class Violation:
    """A violation of a rule.

    Attributes:
        at: The call or location; the severity is that of a warning if the call is under an unknown condition.
        message: What the script does.
        severity: Replaces the severity of the rule; None: the rule's.
        reason: Replaces the reason of the rule; empty: the rule's.
        fix: Replaces the fix of the rule; empty: the rule's.
    """

    at: Call | Location
    message: str
    severity: Severity | None = None
    reason: str = ""
    fix: str = ""


Check = Callable[[Subject], Iterator[Violation]]

RULES: dict[str, Callable[[Subject], Iterator[Finding]]] = {}
"""The rules by their stable names; the modules of train.lint.rules fill it."""


def rule(name: str, level: Severity, *, reason: str = "", fix: str = "") -> Callable[[Check], Check]:
    """Return a decorator that registers a function as a rule.

    Args:
        name: Stable name, as in docs/lint.md: ``MW101``.
        level: Severity of its violations.
        reason: The consequence of a violation.
        fix: How to fix it.
    """

    def register(check: Check) -> Check:
        def findings(subject: Subject) -> Iterator[Finding]:
            for item in check(subject):
                location = item.at if isinstance(item.at, Location) else item.at.location
                at = (location.file, location.line, location.column)
                yield Finding(
                    name,
                    *at,
                    severity(item.at, item.severity or level),
                    item.message,
                    item.reason or reason,
                    item.fix or fix,
                )

        RULES[name] = findings
        return check

    return register


def severity(at: Call | Location, level: Severity) -> Severity:
    """Return the severity of a violation: an error in a call under an unknown condition is a warning."""
    unsure = isinstance(at, Call) and not at.sure
    return WARNING if level is ERROR and unsure else level
