from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.tables import Row
from fleet.console.view import Curve, draw_curve, estimate_remaining_s
from fleet.events import Phase, Progress


def row(epoch: int, epochs: int, step: int, steps: int, rate: float, phase: Phase = Phase.RUNNING) -> Row:
    progress = Progress("w", "w", 1, 0.0, epoch, epochs, step, steps, {}, rate)
    return Row("w", phase=phase, progress=progress)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([row(1, 3, 50, 100, 10.0)], 25.0),
        ([row(1, 3, 50, 100, 10.0), row(1, 3, 40, 100, 5.0)], 52.0),  # the last one to end
        ([row(3, 3, 100, 100, 10.0)], 0.0),
        ([row(-1, -1, 60, 100, 2.0)], 20.0),  # a loop without epochs
        ([row(1, 3, 50, 100, -1.0)], None),
        ([row(1, 3, 50, 100, 0.0)], None),
        ([row(1, -1, 50, 100, 1.0)], None),  # number of epochs unknown
        ([row(1, 3, 50, -1, 1.0)], None),
        ([row(1, 3, 2, 100, 1.0)], None),  # too early
        ([row(1, 3, 50, 100, 1.0, Phase.EXITED)], None),
        ([row(1, 3, 50, 100, 10.0), Row("ps-0", phase=Phase.RUNNING)], 25.0),
    ],
)
def test_remaining_time(rows: list[Row], expected: float | None) -> None:
    assert estimate_remaining_s(rows, 0.0) == expected


def test_a_curve_has_bounded_size_and_keeps_its_shape() -> None:
    curve = Curve("worker-0")
    for number in range(10_000):
        curve = curve.add(10_000.0 - number).add(math.nan)
    assert 32 <= len(curve.points) < 128
    assert draw_curve(curve.points, 8) == "█▇▆▅▄▃▂▁"


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=300), st.integers(0, 50))
def test_drawing_a_curve_never_fails(points: list[float], width: int) -> None:
    assert len(draw_curve(points, width)) <= width


def test_a_flat_curve_and_too_few_values() -> None:
    assert draw_curve([1.0, 1.0, 1.0], 8) == "▁▁▁"
    assert draw_curve([1.0], 8) == ""


def test_the_remaining_time_of_whole_epochs_gets_shorter_within_an_epoch() -> None:
    at = Progress(epoch=3, epochs=5, step=30, steps=30, steps_per_s=9.0, epochs_done=3, epoch_s=60.0)
    row = Row("worker-0", phase=Phase.RUNNING, progress=at, epoch_at=1000.0)
    assert [estimate_remaining_s([row], now) for now in (1000.0, 1045.0, 2000.0)] == [120.0, 75.0, 0.0]
    assert estimate_remaining_s([replace(row, progress=replace(at, epochs_done=5))], 1000.0) == 0.0


def test_the_time_between_epochs_counts_after_the_second_epoch() -> None:
    at = row(2, 4, 22, 22, 10.0)
    done = replace(at, progress=replace(at.progress, epochs_done=2), epoch_at=100.0, epoch_span_s=12.0)
    assert [estimate_remaining_s([done], now) for now in (100.0, 105.0, 124.0)] == [24.0, 19.0, 0.0]
