"""Find the task that the others wait for in synchronous training, and how long they wait; pure.

All workers of a synchronous training have the same step time: each waits in the collective operation for the last
one. What differs is the time that a worker needs before it: its input pipeline, or Python between the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fleet.events import Progress, TaskAwaited

_SHARE_MIN = 0.3  # of the step
_MARGIN = 0.2  # of the step, more than the next task
_MARGIN_S = 0.005
_INPUT_SHARE = 0.5  # of the time that a task needs: then its input pipeline is the cause
_STEPS_DIFFER = 1.25  # more: the tasks do not wait for each other at each step
NOT_TRAINING = ("ps", "evaluator")


class OwnTime(NamedTuple):
    """The part of a step in which a task does not wait for the others."""

    step_s: float
    own_s: float
    cause: str  # input or python


def own_time(step_s: float | None, input_s: float | None, python_s: float | None) -> OwnTime | None:
    """Return the part of a step that a task needs before the collective operation; None if unknown."""
    parts = [seconds for seconds in (input_s, python_s) if seconds is not None]
    if step_s is None or step_s <= 0 or not parts:
        return None
    seconds = max(parts)
    # In a custom loop, Python waits for the input pipeline: then both are the same time.
    cause = "input" if input_s is not None and input_s >= _INPUT_SHARE * seconds else "python"
    return OwnTime(step_s, min(seconds, step_s), cause)


def find_awaited(progress: Mapping[str, Progress | None], attempt: int = 0) -> TaskAwaited | None:
    """Return the task that all others wait for; None if there is none, or if it is unknown.

    Args:
        progress: Latest progress of all running tasks by name. Its times are medians over several windows.
        attempt: Their attempt.
    """
    training = {task: at for task, at in progress.items() if not task.startswith(NOT_TRAINING)}
    reported = [at for at in training.values() if at is not None]
    if len(training) < 2 or len(reported) < len(training):
        return None
    if len({(at.input_s is None, at.python_s is None) for at in reported}) > 1:  # they cannot be compared
        return None
    times = {task: own_time(at.step_s, at.input_s, at.python_s) for task, at in training.items() if at is not None}
    ranked = sorted(
        ((busy, task) for task, busy in times.items() if busy is not None), key=lambda pair: -pair[0].own_s
    )
    if len(ranked) < len(training):
        return None
    steps = [busy.step_s for busy, _ in ranked]
    (first, task), (second, _) = ranked[:2]
    is_synchronous = max(steps) <= _STEPS_DIFFER * min(steps)
    is_clear = first.own_s - second.own_s >= max(_MARGIN * first.step_s, _MARGIN_S)
    if not (is_synchronous and is_clear and first.own_s >= _SHARE_MIN * first.step_s):
        return None
    return TaskAwaited(task=task, attempt=attempt, cause=first.cause, own_s=first.own_s, step_s=first.step_s)


def waiting_times(busy: Mapping[str, float]) -> dict[str, float]:
    """Return how long each task waits for the last one in each step, in seconds.

    This is the least: a task that also computes more slowly than the others makes them wait longer.

    Args:
        busy: The part of a step that each task needs before the collective operation, in seconds.
    """
    last = max(busy.values(), default=0.0)
    return {task: last - seconds for task, seconds in busy.items()}
