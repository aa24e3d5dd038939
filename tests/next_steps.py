"""Read the next steps of errors in tests."""

from __future__ import annotations

from fleet.errors import FleetError
from fleet.steps import Again, step_of
from provision.model import Finding
from provision.provider import ProviderError


def next_lines(error: FleetError) -> str:
    """Return the commands of an error, one per line, without repetitions of the typed command."""
    return "\n".join(step.text() for step in error.next_steps if not isinstance(step, Again))


def command_lines(problem: ProviderError | Finding) -> str:
    """Return the commands that a provider recommends, one per line."""
    return "\n".join(step_of(command).text() for command in problem.next_steps)


def repetition(error: FleetError) -> Again | None:
    """Return the step that repeats the typed command; None: the command must not be repeated."""
    return next((step for step in error.next_steps if isinstance(step, Again)), None)
