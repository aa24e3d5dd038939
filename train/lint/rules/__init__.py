"""Rules of the linter; the import of this package registers all of them in train.lint.rule.RULES."""

from __future__ import annotations

from train.lint.rule import RULES
from train.lint.rules import data, program, saving, scope, strategy, together, versions

__all__ = ["RULES", "data", "program", "saving", "scope", "strategy", "together", "versions"]

UNREADABLE = "MW001"
"""Name of the finding for a file that does not compile; it has no rule function."""
