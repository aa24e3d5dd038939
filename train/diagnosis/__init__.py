"""First cause of a failed job, from the exits, times, reasons and logs of all its tasks; pure, without I/O."""

from __future__ import annotations

from train.diagnosis.judge import diagnose
from train.diagnosis.model import Kind, TaskEvidence, Verdict

__all__ = ["Kind", "TaskEvidence", "Verdict", "diagnose"]
