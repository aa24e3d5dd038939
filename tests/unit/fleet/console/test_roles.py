"""Tasks and slots on every console."""

from __future__ import annotations

import io

from fleet.console.frame import make_frame
from fleet.console.lines import LinesSink
from fleet.console.messages import describe_event
from fleet.console.status_table import render_status
from fleet.console.tables import describe_state, render
from fleet.events import (
    ConnectionLost,
    Exit,
    FleetOpened,
    FleetStatus,
    HostStatus,
    JobResult,
    JobStarted,
    JobStatus,
    LogChunk,
    Member,
    Outcome,
    Phase,
    TaskState,
    TaskStatus,
)
from tests.unit.fleet.console.samples import after

SLOTS = ("worker-0", "worker-1", "worker-2", "worker-3")
TASKS = {"worker-0": "chief-0", "worker-1": "worker-0", "worker-2": "ps-0", "worker-3": ""}
MEMBERS = tuple(
    Member(slot, task, "127.0.0.2", f"127.0.0.2:{2222 + n}") for n, (slot, task) in enumerate(TASKS.items())
)
OPENED = FleetOpened("demo", "local", SLOTS, 1.0, 0.0, tasks_per_host=2)
STARTED = JobStarted("j", "task.py", 1, MEMBERS, 1.0)
SUCCEEDED = JobResult("j", 1, Outcome.SUCCEEDED, 2.0, exits={"chief-0": Exit(code=0), "ps-0": Exit(signal=15)})


def test_a_fleet_counts_its_hosts_and_says_how_many_tasks_each_has() -> None:
    assert describe_event(OPENED) == "fleet demo: 2 hosts, 2 tasks each (local)"


def test_rows_are_named_by_task_in_the_order_of_the_types() -> None:
    view = after(OPENED, STARTED)
    assert [(row.name, row.slot) for row in view.rows] == [
        ("chief-0", "worker-0"), ("worker-0", "worker-1"), ("worker-3", "worker-3"), ("ps-0", "worker-2"),
    ]  # fmt: skip
    assert describe_event(STARTED) == "job j started: task.py on chief-0, worker-0, ps-0, spare: worker-3"


def test_a_host_that_is_lost_marks_the_task_that_is_on_it_alone() -> None:
    view = after(OPENED, STARTED, ConnectionLost("worker-0", "timed out", 1.0))
    assert [row.name for row in view.rows if row.lost] == ["chief-0"]


def test_a_task_that_another_host_took_over_keeps_its_row() -> None:
    lost = ConnectionLost("worker-2", "timed out", 1.0)
    view = after(OPENED, STARTED, lost, TaskState("worker-3", "ps-0", 2, Phase.RUNNING, 2.0))
    (row,) = [row for row in view.rows if row.name == "ps-0"]
    assert (row.slot, row.lost, row.phase) == ("worker-3", "", Phase.RUNNING)


def test_what_was_stopped_after_the_success_is_no_failure() -> None:
    view = after(
        OPENED,
        STARTED,
        TaskState("worker-0", "chief-0", 1, Phase.EXITED, 2.0, exit=Exit(code=0)),
        TaskState("worker-2", "ps-0", 1, Phase.EXITED, 2.0, exit=Exit(signal=15)),
        SUCCEEDED,
    )
    words = {row.name: describe_state(row, frozenset()) for row in view.rows}
    assert (words["chief-0"], words["ps-0"]) == ("done", "stopped")
    text = render(make_frame(view, width=80, height=24, now=2.0), 80, color=True)
    assert not [line for line in text.splitlines() if "stopped" in line and "\x1b[31m" in line]
    failed = after(STARTED, TaskState("worker-2", "ps-0", 1, Phase.EXITED, 2.0, exit=Exit(signal=15)))
    assert [describe_state(row, frozenset()) for row in failed.rows if row.name == "ps-0"] == ["SIGTERM"]


def test_lines_of_the_log_begin_with_the_task() -> None:
    out, err = io.BytesIO(), io.StringIO()
    sink = LinesSink(out, err, prefix=True, color=False)
    sink.emit(LogChunk("worker-2", "ps-0", 1, 0, b"text\n"))
    sink.emit(TaskState("worker-2", "ps-0", 1, Phase.EXITED, 2.0, exit=Exit(signal=15)))
    assert out.getvalue() == b"ps-0 | text\n"
    assert err.getvalue() == "ps-0 on worker-2: was killed by SIGTERM\n"


def test_status_shows_the_slot_of_each_task() -> None:
    tasks = (
        TaskStatus("chief-0", "worker-0", Phase.EXITED, exit=Exit(code=0)),
        TaskStatus("ps-0", "worker-1", Phase.EXITED, exit=Exit(signal=15)),
    )
    job = JobStatus("j", "task.py", 1, 1.0, tasks, SUCCEEDED)
    text = render_status([FleetStatus("demo", "local", (HostStatus("worker-0", "a", 1, True),), job)], now=2.0)
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["chief-0", "on", "worker-0", "done"],
        ["ps-0", "on", "worker-1", "stopped"],
    ]
