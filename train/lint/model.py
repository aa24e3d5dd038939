"""What the linter finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How much a finding matters.

    An error fails, hangs, or trains something else than is meant; a warning is likely wrong; a hint may be meant.
    """

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True)
class Finding:
    """Something in a script that goes wrong between several workers.

    Attributes:
        rule: Its stable name, as docs/lint.md has it: ``MW101``.
        file: As the sources are called.
        line: From 1.
        column: From 1.
        severity: How much it matters.
        message: What the script does, without a full stop.
        reason: What follows from it.
        fix: What to write.
    """

    rule: str
    file: str
    line: int
    column: int
    severity: Severity
    message: str
    reason: str
    fix: str

    @property
    def place(self) -> str:
        """``task.py:12``."""
        return f"{self.file}:{self.line}"

    @property
    def fails(self) -> bool:
        """Whether the job fails, hangs, or trains something else if it comes to this line."""
        likely = self.severity is Severity.WARNING and self.reason.startswith("it fails")
        return self.severity is Severity.ERROR or likely
