from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len

from fleet.console.frame import make_frame
from fleet.console.tables import render
from fleet.console.view import Stage, View, apply
from fleet.events import (
    BootstrapProgress,
    ConnectionLost,
    Event,
    Exit,
    FleetDown,
    GpuUse,
    InstanceChanged,
    JobResult,
    Outcome,
    Phase,
    Progress,
    PushProgress,
    TaskAwaited,
    TaskPrepared,
    TaskState,
    Usage,
    ZoneTried,
)
from tests.unit.fleet.console.samples import ENDED, QUOTED, START, exited, names, opened, running, started


def shown(events: Sequence[Event], width: int = 80, height: int = 24, **more: object) -> list[str]:
    view = View()
    for event in events:
        view = apply(view, event, START)
    frame = make_frame(view, width=width, height=height, now=START + 754, **more)  # type: ignore[arg-type]
    lines = render(frame, width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return lines


def test_a_training_at_80_columns() -> None:
    events = [opened(2, price=0.7), started(2), *running(2)]
    assert shown(events, notice="Ctrl-C detaches; the job keeps running") == [
        "── demo ────────────────────── 12:34 · 5 min left · $0.85 · deleted in 47 min ──",
        "job 20260102-101112-ab3d  attempt 1  custom_training_loop.py",
        "TASK      STATE     CPU   MEM  EPOCH       STEP  STEPS/S      LOSS  ACCURACY",
        "worker-0  running  180%  1.1G    2/5   840/1200     12.3    0.3412    0.8910",
        "worker-1  running  180%  1.1G    2/5   840/1200     12.3    0.3412    0.8910",
        "Ctrl-C detaches; the job keeps running",
    ]


def test_a_narrow_rule_keeps_the_name_of_the_fleet_and_its_end() -> None:
    events = [opened(2, price=0.7), started(2), *running(2)]
    assert shown(events, 40)[0] == "── demo ─── $0.85 · deleted in 47 min ──"
    assert shown(events, 30)[0] == "── demo ─ deleted in 47 min ──"


def test_the_rule_has_the_name_of_the_fleet_from_its_price_on() -> None:
    assert shown([QUOTED]) == []  # nothing is started: the question follows
    assert shown([QUOTED, ZoneTried("us-central1", "requesting 2 instances")])[0].startswith("── demo ─")
    over = View(fleet="demo", stage=Stage.UP, began_at=START, is_over=True)
    assert (
        render(make_frame(over, width=80, height=24, now=START), 80) == ""
    )  # nothing was created: the error follows
    assert "connecting" in shown([opened(2)])[2]


def test_the_attempt_and_when_the_next_one_starts() -> None:
    events = [started(3, spares=1, attempts=4), *running(2), exited("worker-1", signal=9)]
    assert shown(events)[1] == "job 20260102-101112-ab3d  attempt 1 of 4  custom_training_loop.py"
    assert any(line.startswith("worker-2  spare") for line in shown(events))
    waits = [*events, replace(ENDED, retry_s=760.0)]
    assert shown(waits)[1] == "job 20260102-101112-ab3d  attempt 1 of 4, next in 6 s  custom_training_loop.py"
    assert "attempt 1 of 4, next soon" in shown([*events, ENDED])[1]
    again = [*waits, TaskState("worker-2", "worker-1", 2, Phase.RUNNING, START)]
    assert "attempt 2 of 4  custom" in shown(again)[1]
    assert any(line.startswith("worker-1 on worker-2  running") for line in shown(again))
    assert not any("SIGKILL" in line or "840" in line for line in shown(again))


def test_nothing_is_shown_of_nothing() -> None:
    assert shown([]) == []


def test_a_free_fleet_shows_no_cost() -> None:
    assert shown([opened(1)])[0] == "── demo " + "─" * 63 + " 12:34 ──"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_key_facts_fit_every_width(width: int) -> None:
    gpus = [Usage(name, name, START, 1580.0, 12 * 2**30, (GpuUse(0, 100.0, 81_559),)) for name in names(12)]
    metrics = {"loss": 123456.0, "sparse_categorical_accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.4}
    steps = [Progress(name, name, 1, START, 12, 100, 46_875, 46_875, metrics, 123.4) for name in names(12)]
    text = "\n".join(shown([opened(12, price=0.7), started(12), *running(12), *gpus, *steps], width, 40))
    for fact in ("worker-11", "running", "12/100", "46875/46875", "1.2e+05", "123"):
        assert fact in text
    assert "100%" in text or width < 80


def test_wide_terminals_show_more() -> None:
    text = "\n".join(shown([started(2), *running(2)], 120))
    assert "10.0.0.2:2222" in text
    assert "━━━━" in text


def test_rows_beyond_the_height_are_folded() -> None:
    lines = shown([opened(40), started(40), *running(40)])
    assert len(lines) <= 16  # a third is for the log
    assert sum(line.startswith("worker-") for line in lines) == 12
    assert "… and 28 more running" in lines


@pytest.mark.parametrize("height", [1, 5, 10])
def test_even_the_smallest_terminal_shows_a_few(height: int) -> None:
    lines = shown([opened(40), started(40), *running(40)], height=height)
    assert sum(line.startswith("worker-") for line in lines) >= 2


def test_what_needs_attention_is_never_folded() -> None:
    slow = Progress("worker-37", "worker-37", 1, START, 2, 5, 840, 1200, {}, 1.0)
    events = [started(40), *running(40), exited("worker-35", code=3), ConnectionLost("worker-39", "gone", 1.0), slow]
    text = "\n".join(shown(events))
    assert "worker-35  exit 3" in text
    assert "worker-37  slow" in text
    assert "worker-39  no answer" in text


def test_folded_states_are_distinguished() -> None:
    events = [started(40), *running(40), *(exited(name, code=0) for name in names(40)[30:])]
    assert "… and 18 more running, 10 done" in shown(events)


def test_up_and_down_have_a_bar() -> None:
    ups: list[Event] = [InstanceChanged("worker-0", "ready", done=True), InstanceChanged("worker-1", "starting sshd")]
    assert shown(ups)[-3:] == [
        "worker-0  ready",
        "worker-1  starting sshd",
        "getting ready ━━━━━━━━━━━━━━━━━━━━                     1 of 2",
    ]
    downs: list[Event] = [InstanceChanged("worker-0", "deleting"), InstanceChanged("worker-1", "deleted", done=True)]
    assert shown(downs)[-1] == "deleting ━━━━━━━━━━━━━━━━━━━━                     1 of 2"
    assert not shown([*downs, FleetDown("demo", names(2), 0, 0.0, 1.0)])[-1].startswith("deleting")


def test_getting_ready_has_bars() -> None:
    events: list[Event] = [
        BootstrapProgress("worker-0", "downloading packages", "a.whl", 1, 4),
        BootstrapProgress("worker-1", "waiting for the NVIDIA driver", "No devices were found"),
        BootstrapProgress("worker-2", "ready", "Python 3.12.3", done=True),
    ]
    assert shown(events)[-4:] == [
        "worker-0  downloading packages           ━━╸        a.whl",
        "worker-1  waiting for the NVIDIA driver  No devices were found",
        "worker-2  ready                          Python 3.12.3",
        "getting ready ━━━━━━━━━━━━━                            1 of 3",
    ]


def test_push_has_bars() -> None:
    lines = shown([opened(2), PushProgress("worker-0", 2**20, 4 * 2**20, 12), PushProgress("worker-1", 0, 2**22, 12)])
    assert lines[-3] == "worker-0  pushing  ━━╸        1.0 MiB of 4.0 MiB, 12 files"
    assert lines[-1] == "pushing ━━━━━                                    1.0 MiB of 8.0 MiB"


def test_prepared_hosts_show_what_they_reserved() -> None:
    assert shown([opened(1), TaskPrepared("worker-0", "10.0.0.2:2222")])[-1] == "worker-0  prepared  10.0.0.2:2222"


def test_a_failure_is_shown_in_full() -> None:
    reason = "worker-1 raised ValueError: shapes (3, 4) and (5, 6) do not match, which no user could foresee at all"
    result = JobResult("j-1", 1, Outcome.FAILED, START, "worker-1", reason, {"worker-1": Exit(code=1)})
    lines = shown([started(2), *running(2), exited("worker-1", code=1), exited("worker-0", signal=15), result])
    assert any(line.startswith("worker-0  SIGTERM") for line in lines)
    assert " ".join(lines[-2:]) == f"job j-1 failed: {reason}"


def test_a_progress_bar_of_a_task_is_in_its_row() -> None:
    state = running(1)[0]
    assert shown([started(1), state], bars={"worker-0": "Downloading 45%"})[3].endswith("Downloading 45%")


def test_control_characters_from_a_host_are_taken_out() -> None:
    result = JobResult("j-1", 1, Outcome.FAILED, START, "", "bad\x1b[2J\x1b]0;title\x07")
    assert shown([started(1), result])[-1] == "job j-1 failed: bad"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("is_usage_first", [True, False])
def test_columns_keep_their_places_and_their_order_does_not_depend_on_what_arrives_first(
    width: int, is_usage_first: bool
) -> None:
    usage = [Usage(name, name, START, 180.0, 1_234_567_890) for name in names(2)]
    state = [TaskState(name, name, 1, Phase.RUNNING, START, 12) for name in names(2)]

    def at(step: int, metrics: dict[str, float]) -> list[Event]:
        return [Progress(name, name, 1, START, 2, 5, step, 1200, metrics, 12.3) for name in names(2)]

    view, headings = View(), []
    widths: dict[str, int] = {}
    history = [opened(2), started(2), *state, *(usage if is_usage_first else []), *at(-1, {}), *at(9, {"loss": 1.0})]
    history += [
        *usage,
        *at(1000, {"loss": 12.0, "accuracy": 0.5, "mae": 3.0}),
        *at(3, {"val_accuracy": 0.1, "val_loss": 7.0}),
    ]
    for event in history:
        view = apply(view, event, START)
        lines = render(make_frame(view, width=width, height=24, now=START, widths=widths), width).splitlines()
        headings += [line for line in lines if line.startswith("TASK")]
    for before, after in pairwise(headings):
        for title in re.finditer(r"\S+", before):
            assert after[slice(*title.span())] == title[0], (before, after)
    titles = [title for title in headings[-1].split() if title not in ("ADDRESS", "MEM", "MAE", "VAL_ACCURACY")]
    assert titles == ["TASK", "STATE", "CPU", "EPOCH", "STEP", "STEPS/S", "LOSS", "ACCURACY"]


def test_the_curve_of_the_loss_is_shown_if_there_is_room() -> None:
    steps = [Progress("worker-0", "worker-0", 1, START, 1, 5, step, 9, {"loss": 8.0 - step}) for step in range(8)]
    other = Progress("worker-1", "worker-1", 1, START, 1, 5, 1, 9, {"loss": 99.0})
    events = [started(2), *running(2)[::3], steps[0], other, *steps[1:]]
    assert shown(events)[1].endswith("custom_training_loop.py       loss █▇▆▅▄▃▂▁")
    assert "loss" not in shown(events, 70)[1]
    assert "█" not in shown([*events, TaskState("worker-0", "worker-0", 2, Phase.RUNNING, START)])[1]


def test_tasks_between_two_epochs_say_so() -> None:
    def view(steps: Sequence[tuple[int, int]], width: int) -> list[str]:
        at = [Progress(f"worker-{number}", f"worker-{number}", 1, START, 2, 5, step, 22) for number, step in steps]
        return shown([opened(2), started(2), *running(2), *at], width)

    words = "end of the epoch: validating or saving"
    assert view([(0, 22), (1, 22)], 80)[-1] == words
    assert words not in view([(0, 22), (1, 21)], 80)[-1]
    assert view([(0, 22), (1, 21)], 160)[-2].rstrip().endswith(words)


def test_a_task_is_slow_only_if_the_others_have_waited_for_it_for_a_while() -> None:
    busy = [
        Progress(
            f"worker-{number}", f"worker-{number}", 1, START, 1, 5, 9, 99, {}, 8.0, step_s=0.125, python_s=busy_s
        )
        for number, busy_s in enumerate((0.086, 0.02))
    ]
    events: list[Event] = [opened(2), started(2), *running(2), *busy]
    words = "the others wait for worker-0"
    assert not any(words in line or " slow " in line for line in shown(events))
    lines = shown([*events, TaskAwaited("worker-0", 1, "python", 0.086, 0.125)])
    assert any(words in line for line in lines)
    assert any(line.startswith("worker-0  slow") for line in lines)
