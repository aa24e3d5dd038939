"""Declaration of the rules: a rule is a function that yields violations, with its name and its texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from train.lint.finding import Finding, Severity
from train.lint.script import Script
from train.lint.values import Call, Location

ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Violation(NamedTuple):
    """A violation of a rule.

    Attributes:
        at: The call or location; in a call under an unknown condition an error becomes a warning.
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


Check = Callable[[Script], Iterator[Violation]]

RULES: dict[str, Callable[[Script], Iterator[Finding]]] = {}
"""The rules by their stable names; the modules with rules fill it."""


def rule(name: str, level: Severity, reason: str = "", fix: str = "") -> Callable[[Check], Check]:
    """Return a decorator that registers a function as a rule.

    Args:
        name: Stable name, as in docs/lint.md: ``MW101``.
        level: Severity of its violations.
        reason: The consequence of a violation.
        fix: How to fix it.
    """

    def register(check: Check) -> Check:
        def find(script: Script) -> Iterator[Finding]:
            for at, message, own_level, own_reason, own_fix in check(script):
                where = at if isinstance(at, Location) else at.location
                final = severity(at, own_level or level)
                yield Finding(name, *where, final, message, own_reason or reason, own_fix or fix)

        RULES[name] = find
        return check

    return register


def severity(at: Call | Location, level: Severity) -> Severity:
    """Return the severity of a violation: an error in a call under an unknown condition is a warning."""
    return WARNING if level is ERROR and isinstance(at, Call) and not at.sure else level
