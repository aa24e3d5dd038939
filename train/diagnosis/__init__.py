"""Find the first cause of a failed job in the exits, times, reasons, and logs of its tasks; pure, without I/O."""

from __future__ import annotations

from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Kind, TaskEvidence, Verdict

__all__ = ["Kind", "TaskEvidence", "Verdict", "diagnose"]
