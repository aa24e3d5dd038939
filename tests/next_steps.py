"""Next steps of errors, for tests."""

from __future__ import annotations

from fleet.errors import FleetError
from fleet.steps import Again


def next_lines(error: FleetError) -> str:
    """Return the commands of an error, one per line, without repetitions of the typed command."""
    return "\n".join(step.text() for step in error.next_steps if not isinstance(step, Again))


def repetition(error: FleetError) -> Again | None:
    """Return how the typed command is to be repeated; None: not at all."""
    return next((step for step in error.next_steps if isinstance(step, Again)), None)
