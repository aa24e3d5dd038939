"""Read the next steps of errors in tests."""

from __future__ import annotations

from fleet.errors import FleetError
from fleet.steps import Again


def next_lines(error: FleetError) -> str:
    """Return the commands of an error, one per line, without repetitions of the typed command."""
    return "\n".join(step.text() for step in error.next_steps if not isinstance(step, Again))


def repetition(error: FleetError) -> Again | None:
    """Return the step that repeats the typed command; None: the command must not be repeated."""
    return next((step for step in error.next_steps if isinstance(step, Again)), None)
