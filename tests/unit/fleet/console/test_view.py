from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.console.tables import Row, find_stragglers
from fleet.console.view import Stage, View, apply
from fleet.events import (
    BootstrapProgress,
    ConnectionLost,
    ConnectionRestored,
    Exit,
    FleetDown,
    FleetResized,
    GpuUse,
    HostConnected,
    InstanceChanged,
    JobResult,
    JobStarted,
    LogChunk,
    Member,
    Outcome,
    Phase,
    PriceChanged,
    Progress,
    PushProgress,
    TaskPrepared,
    TaskState,
    Usage,
)
from tests.unit.fleet.console.samples import ENDED, ONE_OF_EACH, START, after, exited, names, opened, running, started


def row(view: View, name: str) -> Row:
    (match,) = [row for row in view.rows if row.name == name]
    return match


def test_every_event_is_taken() -> None:
    view = after(*ONE_OF_EACH)
    assert view.result is not None


def test_up() -> None:
    view = after(
        InstanceChanged("worker-10", "starting sshd"),
        InstanceChanged("worker-2", "starting sshd"),
        InstanceChanged("worker-2", "ready", done=True),
    )
    assert view.stage is Stage.UP
    assert [(row.name, row.step_text, row.ready) for row in view.rows] == [
        ("worker-2", "ready", True),
        ("worker-10", "starting sshd", False),
    ]


def test_opened_fleet_and_its_cost() -> None:
    view = after(opened(2, price=0.7))
    assert (view.fleet, view.provider, view.delete_at) == ("demo", "gce", START + 3600)
    assert [row.name for row in view.rows] == ["worker-0", "worker-1"]
    assert view.cost_usd(START) == pytest.approx(0.7)
    assert view.cost_usd(START + 7200) == pytest.approx(3 * 0.7)


def test_the_cost_counts_instances_that_are_gone_or_were_stopped() -> None:
    view = after(replace(opened(2, price=0.7), cost_usd=5.0))  # not price times age
    assert view.cost_usd(START + 3600) == pytest.approx(5.7)


def test_a_new_price_counts_from_its_report() -> None:
    view = after(opened(2, price=0.7), PriceChanged("demo", 1.4, 2.0))
    assert view.cost_usd(START + 3600) == pytest.approx(3.4)
    assert [row.name for row in view.rows] == ["worker-0", "worker-1"]


def test_hosts_get_ready_step_by_step() -> None:
    view = after(
        InstanceChanged("worker-0", "ready", done=True),
        BootstrapProgress("worker-0", "downloading packages", "a.whl", 10, 20),
        BootstrapProgress("worker-1", "ready", "Python 3.12.3", done=True),
    )
    assert view.stage is Stage.UP
    assert [(row.step_text, row.detail, row.part, row.whole, row.ready) for row in view.rows] == [
        ("downloading packages", "a.whl", 10, 20, False),
        ("ready", "Python 3.12.3", 0, 0, True),
    ]
    assert (
        row(after(BootstrapProgress("w", "ready", "x"), PushProgress("w", 1, 2, 1)), "w").detail
        == "1 B of 2 B, 1 file"
    )


def test_push_makes_ready_when_all_is_sent() -> None:
    view = after(opened(2), PushProgress("worker-0", 5, 10, 3), PushProgress("worker-1", 10, 10, 3))
    assert view.stage is Stage.PUSH
    assert [(row.part, row.whole, row.ready) for row in view.rows] == [(5, 10, False), (10, 10, True)]


def test_a_new_stage_makes_no_host_ready() -> None:
    view = after(InstanceChanged("worker-0", "ready", done=True), PushProgress("worker-1", 1, 10, 3))
    assert not row(view, "worker-0").ready


def test_job_started_makes_rows_of_tasks() -> None:
    view = after(
        opened(2), PushProgress("worker-0", 10, 10, 3), TaskPrepared("worker-0", "10.0.0.2:2222"), started(2)
    )
    assert view.stage is Stage.JOB
    assert (view.job, view.script, view.attempt, view.started_at) == (
        "20260102-101112-ab3d", "custom_training_loop.py", 1, START,
    )  # fmt: skip
    assert row(view, "worker-0") == Row(
        "worker-0", slot="worker-0", address="10.0.0.2", endpoint="10.0.0.2:2222", attempt=1
    )


def test_a_task_has_the_connection_of_its_slot() -> None:
    job = JobStarted("j", "task.py", 1, (Member("alpha", "chief-0", "10.0.0.9", "10.0.0.9:2222"),), START)
    view = after(HostConnected("alpha", "10.0.0.9"), job, ConnectionLost("alpha", "timed out", 1.0))
    assert row(view, "chief-0").slot == "alpha"
    assert row(view, "chief-0").lost == "timed out"


def test_running_task() -> None:
    gpus = (GpuUse(0, 80.0, 1000), GpuUse(1, 90.0, 2000))
    view = after(opened(1), started(1), *running(1), Usage("worker-0", "worker-0", START, 150.0, 2**30, gpus))
    task = row(view, "worker-0")
    at = task.progress
    assert (task.phase, at.epoch, at.epochs, at.step, at.steps) == (Phase.RUNNING, 2, 5, 840, 1200)
    assert (at.metrics["loss"], at.steps_per_s) == (0.3412, 12.3)
    assert (task.cpu_percent, task.memory_bytes, task.gpu_percent, task.gpu_memory_mib) == (150.0, 2**30, 85.0, 3000)


def test_metrics_outlive_a_reading_without_them() -> None:
    view = after(started(1), *running(1), Progress("worker-0", "worker-0", 1, START, 3, 5, 1, 1200, {"loss": 0.2}))
    assert row(view, "worker-0").progress.metrics == {"accuracy": 0.891, "loss": 0.2}


def test_exit() -> None:
    assert row(after(started(1), exited("worker-0", code=3)), "worker-0").exit == Exit(3)


def test_a_new_attempt_begins_afresh_and_old_news_are_ignored() -> None:
    view = after(started(2), *running(2), TaskState("worker-0", "worker-0", 2, Phase.WAITING, START))
    view = apply(view, Progress("worker-0", "worker-0", 1, START, step=999), START)
    view = apply(view, exited("worker-0", code=1), START)
    view = apply(view, exited("worker-1", code=1), START)
    task = row(view, "worker-0")
    assert (view.attempt, task.attempt, task.progress.step, task.phase, task.exit) == (2, 2, -1, Phase.WAITING, None)
    assert task.endpoint == "10.0.0.2:2222"
    assert row(view, "worker-1") == replace(task, name="worker-1", slot="worker-1", phase=None,
                                            address="10.0.0.3", endpoint="10.0.0.3:2222")  # fmt: skip


def test_between_two_attempts() -> None:
    view = after(started(2), *running(2), exited("worker-1", signal=9), replace(ENDED, retry_s=30.0))
    assert (view.attempt, view.attempts, view.retry_at) == (1, 4, START + 30)
    assert row(view, "worker-1").phase is Phase.EXITED
    view = apply(view, TaskState("worker-0", "worker-0", 2, Phase.WAITING, START), START + 31)
    assert (view.attempt, view.retry_at) == (2, 0.0)
    assert apply(view, ENDED, START + 32) == view  # reported again, by a host that lags behind


def test_a_spare_takes_over() -> None:
    view = after(started(3, spares=1), *running(2))
    assert (row(view, "worker-2").step_text, row(view, "worker-2").phase) == ("spare", None)
    view = apply(view, TaskState("worker-0", "worker-0", 2, Phase.WAITING, START), START)
    assert row(view, "worker-2").step_text == "spare"
    view = apply(view, TaskState("worker-2", "worker-1", 2, Phase.RUNNING, START), START)
    task = row(view, "worker-1")
    assert (task.slot, task.address, task.step_text, task.phase) == ("worker-2", "10.0.0.4", "", Phase.RUNNING)
    assert [row.name for row in view.rows] == ["worker-0", "worker-1"]


def test_connection() -> None:
    view = after(started(2), *running(2), ConnectionLost("worker-1", "timed out", 2.0))
    assert row(view, "worker-1").lost == "timed out"
    assert row(view, "worker-0").lost == ""
    assert row(apply(view, ConnectionRestored("worker-1"), START), "worker-1").lost == ""


def test_a_lost_host_is_still_lost_when_the_job_starts() -> None:
    view = after(opened(2), ConnectionLost("worker-1", "timed out", 2.0), started(2))
    assert row(view, "worker-1").lost == "timed out"


def test_result_stops_the_clock() -> None:
    view = apply(after(started(1)), JobResult("j", 1, Outcome.SUCCEEDED, 5.0), START + 60)
    assert view.ended_at == START + 60
    assert apply(view, started(1, attempt=2), START + 70).ended_at == 0.0


def test_down() -> None:
    view = after(started(1), *running(1), InstanceChanged("worker-0", "deleting"))
    assert view.stage is Stage.DOWN
    assert row(view, "worker-0") == Row("worker-0", slot="worker-0", address="10.0.0.2", step_text="deleting")
    view = apply(view, InstanceChanged("worker-0", "deleted", done=True), START)
    view = apply(view, FleetDown("demo", ("worker-0",), 0, 0.1, 60.0), START + 5)
    assert row(view, "worker-0").ready
    assert view.down is not None
    assert view.ended_at == START + 5


def test_a_resize_leaves_only_ready_hosts() -> None:
    deleted, connected = InstanceChanged("worker-1", "deleted", done=True), HostConnected("worker-0", "10.0.0.2")
    resized = FleetResized("demo", 1, (), ("worker-1",), 0.0, 0.0)
    view = after(opened(2), deleted, connected, opened(1), resized)
    assert view.stage is Stage.UP
    assert [(row.name, row.ready) for row in view.rows] == [("worker-0", True)]


def test_output_changes_nothing() -> None:
    view = after(started(1))
    assert apply(view, LogChunk("worker-0", "worker-0", 1, 0, b"x"), START) is view


def test_a_view_is_never_changed() -> None:
    first = after(started(2))
    before = first.rows
    apply(first, exited("worker-0", code=0), START)
    assert first.rows is before
    assert first.rows[0].phase is None


def tasks(*rates: float, steps: tuple[int, ...] = ()) -> tuple[Row, ...]:
    rows = [
        Row(name, phase=Phase.RUNNING, progress=Progress(steps_per_s=rate, step=100, steps=1000, epoch=1))
        for name, rate in zip(names(len(rates)), rates, strict=True)
    ]
    pairs = zip(rows, steps, strict=True) if steps else ((row, 100) for row in rows)
    return tuple(replace(row, progress=replace(row.progress, step=step)) for row, step in pairs)


@pytest.mark.parametrize(
    ("rows", "slow"),
    [
        (tasks(10.0), []),
        (tasks(10.0, 9.0), []),
        (tasks(10.0, 6.0), ["worker-1"]),
        (tasks(10.0, 10.0, 6.9, 10.0), ["worker-2"]),
        (tasks(10.0, -1.0), []),
        (tasks(-1.0, -1.0), []),
        (tasks(10.0, 0.1, steps=(9, 5)), []),  # warming up
        (tasks(10.0, 10.0, steps=(500, 450)), []),  # within what reports may cross
        (tasks(10.0, 10.0, 10.0, steps=(500, 390, 500)), ["worker-1"]),
    ],
)
def test_stragglers(rows: tuple[Row, ...], slow: list[str]) -> None:
    assert sorted(find_stragglers(rows)) == slow


def test_only_tasks_that_run_are_stragglers() -> None:
    fast, late = tasks(10.0, 1.0)
    assert not find_stragglers((fast, replace(late, phase=Phase.EXITED)))
    assert not find_stragglers((fast, replace(late, lost="timed out")))


def test_an_earlier_epoch_is_behind() -> None:
    fast, late = tasks(10.0, 10.0)
    assert find_stragglers((replace(fast, progress=replace(fast.progress, epoch=2)), late)) == {"worker-1"}
