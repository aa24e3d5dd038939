"""All rules, by their stable names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.rules import data, program, saving, scope, strategy, together, versions
from train.lint.subject import Found, Subject

Rule = Callable[[Subject], Iterator[Found]]

UNREADABLE = "MW001"
"""What is found in a file that does not compile; it has no rule of its own."""

RULES: dict[str, Rule] = {
    name: rule
    for topic in (strategy, scope, data, saving, together, versions, program)
    for name, rule in topic.RULES.items()
}
