"""Rules by their stable names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.rules import data, program, saving, scope, strategy, together, versions
from train.lint.subject import Subject, Violation

Rule = Callable[[Subject], Iterator[Violation]]

UNREADABLE = "MW001"
"""Name of the finding for a file that does not compile; it has no rule function."""

RULES: dict[str, Rule] = {
    name: rule
    for topic in (strategy, scope, data, saving, together, versions, program)
    for name, rule in topic.RULES.items()
}
