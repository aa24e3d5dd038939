"""Sizes, changes between frames, and the estimate of the time that is left, which screens.txt cannot show."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from fleet.console.frame import make_frame
from fleet.console.tables import Row, find_stragglers, render
from fleet.console.view import View, estimate_remaining_s
from fleet.events import Event, Phase, Progress, Usage
from tests.unit.fleet.console.samples import START, after, names, opened, running, started
from tests.unit.fleet.console.screens import at, state


def test_even_the_smallest_terminal_shows_a_few_tasks() -> None:
    view = after(opened(40), started(40), *running(40))
    text = render(make_frame(view, width=80, height=1, now=START), 80)
    assert sum(line.startswith("worker-") for line in text.splitlines()) >= 2


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("is_usage_first", [True, False])
def test_columns_keep_their_places_and_their_order_does_not_depend_on_what_arrives_first(
    width: int, is_usage_first: bool
) -> None:
    usage = [Usage(name, name, START, 180.0, 1_234_567_890) for name in names(2)]
    view, headings = View(), []
    widths: dict[str, int] = {}
    history: list[Event] = [opened(2), started(2), *(state(name, Phase.RUNNING) for name in names(2))]
    history += usage if is_usage_first else []
    for step, metrics in ((-1, {}), (9, {"loss": 1.0}), (1000, {"loss": 12.0, "accuracy": 0.5, "mae": 3.0})):
        history += [at(name, step, metrics=metrics, steps_per_s=12.3) for name in names(2)]
    history += [*usage, *(at(name, 3, metrics={"val_accuracy": 0.1, "val_loss": 7.0}) for name in names(2))]
    for event in history:
        view.take(event, START)
        lines = render(make_frame(view, width=width, height=24, now=START, widths=widths), width).splitlines()
        headings += [line for line in lines if line.startswith("TASK")]
    for before, later in pairwise(headings):
        for title in re.finditer(r"\S+", before):
            assert later[slice(*title.span())] == title[0] or title[0] == "STEPS/S", (before, later)
    titles = [title for title in headings[-1].split() if title not in ("ADDRESS", "MEM", "MAE", "VAL_ACCURACY")]
    assert titles == ["TASK", "STATE", "CPU", "EPOCH", "STEP", "LOSS", "ACCURACY"]


def test_the_clock_of_a_job_stops_at_its_end_and_the_cost_grows_until_then() -> None:
    view = after(opened(2, price=0.7)._replace(cost_usd=5.0))  # not price times age
    assert view.cost_usd(START + 3600) == pytest.approx(5.7)


# --- tasks that are behind, and the remaining time ------------------------------------------------------------------


def row(
    rate: float = 10.0, step: int = 50, steps: int = 100, epoch: int = 1, epochs: int = 3, **fields: object
) -> Row:
    progress = Progress("w", "w", 1, 0.0, epoch, epochs, step, steps, {}, rate)
    return Row(**{"name": "w", "phase": Phase.RUNNING, "progress": progress, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "slow"),
    [
        ([row(10.0)], []),
        ([row(10.0), row(9.0)], []),
        ([row(10.0), row(6.0)], ["worker-1"]),
        ([row(10.0), row(10.0), row(6.9), row(10.0)], ["worker-2"]),
        ([row(10.0), row(-1.0)], []),
        ([row(10.0), row(0.1, step=5)], []),  # warming up
        ([row(10.0), row(1.0, phase=Phase.EXITED)], []),
        ([row(10.0), row(1.0, lost="timed out")], []),
    ],
)
def test_stragglers(rows: list[Row], slow: list[str]) -> None:
    named = [replace(row, name=name) for row, name in zip(rows, names(len(rows)), strict=True)]
    assert sorted(find_stragglers(named)) == slow


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([row()], 25.0),
        ([row(), row(5.0, 40)], 52.0),  # the last one to end
        ([row(step=100, epoch=3)], 0.0),
        ([row(2.0, 60, epoch=-1, epochs=-1)], 20.0),  # a loop without epochs
        ([row(-1.0)], None),
        ([row(1.0, epochs=-1)], None),
        ([row(1.0, steps=-1)], None),
        ([row(1.0, step=2)], None),  # too early
        ([row(phase=Phase.EXITED)], None),
        ([row(), Row("ps-0", phase=Phase.RUNNING)], 25.0),
    ],
)
def test_remaining_time(rows: list[Row], expected: float | None) -> None:
    assert estimate_remaining_s(rows, 0.0) == expected


def test_the_remaining_time_of_whole_epochs_includes_what_is_between_them() -> None:
    progress = Progress(epoch=3, epochs=5, step=30, steps=30, steps_per_s=9.0, epochs_done=3, epoch_s=60.0)
    by_line = row(progress=progress, epoch_at=1000.0)
    assert [estimate_remaining_s([by_line], now) for now in (1000.0, 1045.0, 2000.0)] == [120.0, 75.0, 0.0]
    view = View()
    view.take(started(1), 70.0)
    view.take(state("worker-0", Phase.RUNNING), 70.0)
    for done, now in ((1, 88.0), (2, 100.0)):
        view.take(at("worker-0", 1200, epochs_done=done), now)
    assert [estimate_remaining_s(view.rows, now) for now in (100.0, 105.0, 140.0)] == [36.0, 31.0, 0.0]
