"""The remaining time of a job and the curve of its loss; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fleet.console.tables import Row
from fleet.events import Progress

_POINTS_MAX = 128  # of a curve
_WARM_STEPS = 10  # the first steps are slower than the others


@dataclass(frozen=True)
class Curve:
    """Values of a metric, of one task, in bounded memory.

    Attributes:
        task: Task that reports them.
        points: Means of `every` consecutive values.
        every: Number of values in a point.
        waiting: Values of the next point.
        latest: The latest value.
    """

    task: str = ""
    points: tuple[float, ...] = ()
    every: int = 1
    waiting: tuple[float, ...] = ()
    latest: float | None = None

    def add(self, value: float) -> Curve:
        """Return the curve after a further value; repeated values and values that are not finite are left out."""
        if not math.isfinite(value) or value == self.latest:
            return self
        waiting = (*self.waiting, value)
        if len(waiting) < self.every:
            return replace(self, waiting=waiting, latest=value)
        points = (*self.points, _mean(waiting))
        if len(points) < _POINTS_MAX:
            return replace(self, points=points, waiting=(), latest=value)
        merged = tuple(_mean(points[at : at + 2]) for at in range(0, len(points), 2))
        return replace(self, points=merged, every=2 * self.every, waiting=(), latest=value)


def draw_curve(points: Sequence[float], width: int, levels: str = "▁▂▃▄▅▆▇█") -> str:
    """Draw values as characters of rising height.

    Args:
        points: Finite values.
        width: Largest number of characters.
        levels: Characters, the lowest first.

    Returns:
        At most `width` characters; empty if there are fewer than two values.
    """
    if len(points) < 2 or width < 2:
        return ""
    count = min(width, len(points))
    bounds = [len(points) * number // count for number in range(count + 1)]
    values = [_mean(points[start:end]) for start, end in pairwise(bounds)]
    low, half = min(values) / 2, max(values) / 2 - min(values) / 2  # halves cannot overflow
    return "".join(levels[round((value / 2 - low) / half * (len(levels) - 1)) if half else 0] for value in values)


def estimate_remaining_s(rows: Iterable[Row], now: float) -> float | None:
    """Return the seconds until the last running task ends at its current rate; None if unknown.

    Time for validation and for checkpoints between epochs is included after the second epoch.

    Args:
        rows: Tasks.
        now: Seconds since the epoch.
    """
    estimates = [
        left for row in rows if row.running and not row.lost and (left := _remaining_s(row, now)) is not None
    ]
    return max(estimates, default=None)


def _remaining_s(row: Row, now: float) -> float | None:
    at = row.progress
    epoch_s = row.epoch_span_s if at.epoch_s is None else at.epoch_s
    if epoch_s > 0 and at.epochs_done is not None and at.epochs > 0 and row.epoch_at:
        left = max(0, at.epochs - at.epochs_done)
        return max(0.0, left * epoch_s - (now - row.epoch_at)) if left else 0.0
    steps = _remaining_steps(at)
    if steps is None or at.steps_per_s <= 0 or row.position < _WARM_STEPS:
        return None
    return steps / at.steps_per_s


def _remaining_steps(at: Progress) -> int | None:
    if at.step < 0 or at.steps <= 0:
        return None
    epochs = at.epochs - at.epoch if at.epochs > 0 and at.epoch > 0 else 0
    if at.epoch > 0 and at.epochs <= 0:
        return None
    return max(0, epochs) * at.steps + max(0, at.steps - at.step)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)
