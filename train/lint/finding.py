"""Findings of the linter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Severity of a finding.

    With an error the job fails, hangs, or trains something other than intended; a warning is likely a bug; a hint may
    be intended.
    """

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True)
class Finding:
    """A bug that a script has with several workers.

    Attributes:
        rule: Its stable name, as in docs/lint.md: ``MW101``.
        file: Name of the source.
        line: Line from 1.
        column: Column from 1.
        severity: Its severity.
        message: What the script does, without a full stop.
        reason: The consequence.
        fix: How to fix it.
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
    def location(self) -> str:
        """``task.py:12``."""
        return f"{self.file}:{self.line}"

    @property
    def fails(self) -> bool:
        """True if the job fails, hangs, or trains something else when it reaches this line."""
        likely = self.severity is Severity.WARNING and self.reason.startswith("it fails")
        return self.severity is Severity.ERROR or likely
