"""Declaration of the rules: a rule is a function that yields violations; its texts are in rules.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import NamedTuple

from train.lint.finding import Finding, Severity
from train.lint.script import Script
from train.lint.values import Call, Location

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Violation(NamedTuple):
    """A violation of a rule.

    Attributes:
        at: The call or location; in a call under an unknown condition an error becomes a warning.
        variant: The part of the rule's texts; empty: the rule has one.
        level: Replaces the severity of the rule; None: the rule's.
        fields: Values in the texts; `method` is that of the call.
    """

    at: Call | Location
    variant: str
    level: Severity | None
    fields: Mapping[str, object]


def violation(at: Call | Location, variant: str = "", level: Severity | None = None, **fields: object) -> Violation:
    """Return a violation."""
    return Violation(at, variant, level, fields)


Check = Callable[[Script], Iterator[Violation]]

RULES: dict[str, Callable[[Script], Iterator[Finding]]] = {}
"""The rules by their stable names; the modules with rules fill it."""
_KEYS = ("message", "reason", "fix")
_TEXTS = tomllib.loads(resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


def rule(name: str) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as the rule with this name in rules.toml and docs/lint.md."""

    def register(check: Check) -> Check:
        def find(script: Script) -> Iterator[Finding]:
            for at, variant, level, fields in check(script):
                where, method = (at, "") if isinstance(at, Location) else (at.location, at.method)
                texts = {**_TEXTS[name], **_TEXTS[name].get(variant, {})}
                shown = [texts.get(key, "").format(**{"method": method, **fields}) for key in _KEYS]
                yield Finding(name, *where, severity(at, level or Severity(texts["severity"])), *shown)

        RULES[name] = find
        return check

    return register


def severity(at: Call | Location, level: Severity) -> Severity:
    """Return the severity of a violation: an error in a call under an unknown condition is a warning."""
    return WARNING if level is ERROR and isinstance(at, Call) and not at.sure else level
