"""A job ends before its hosts power off, with its newest checkpoint on all of them."""

from __future__ import annotations

import pytest

from tests.unit.train.agent.gang.test_gang import AGAIN, Play
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import scheduling
from train.agent.gang.states import Source, Stage
from train.agent.protocol.records import Outcome, ReasonKind

OLD, NEW = Snapshot(1, 4, "a"), Snapshot(1, 5, "b")
GRACE_S = 10.0
LEAD_S = 70.0  # the grace period, and a minute to copy the last checkpoint


def ending(in_s: float, *, workers: int = 2) -> Play:
    """Return a running gang; the lifetime of worker-1 ends first."""
    play = Play(workers, AGAIN, grace_s=GRACE_S)
    play.start()
    play.send_record("worker-0", end_at=play.now + in_s + 30.0, snapshot=OLD, source=Source("a", 1))
    play.send_record("worker-1", end_at=play.now + in_s, snapshot=OLD, source=Source("b", 1))
    return play


def test_the_user_is_warned_ten_minutes_before_the_tasks_are_ended() -> None:
    play = ending(3600.0)
    assert scheduling.deadline(play.gang, play.now) == play.now + 3600.0 - LEAD_S - 600.0
    play.wait(3600.0 - LEAD_S - 601.0)
    assert play.order.notices == []
    play.wait(1.0)
    [notice] = play.order.notices
    assert notice == ("the lifetime of the hosts ends: the job is stopped in 10 min; fleet extend gives it more time")
    play.wait(599.0)
    assert play.at(Stage.GO)
    assert len(play.order.notices) == 1


def test_the_job_ends_with_grace_and_without_a_restart_when_its_checkpoint_is_everywhere() -> None:
    play = ending(600.0)
    play.wait(600.0 - LEAD_S)
    state = play.order
    assert (state.stage, state.reason.kind, state.grace_s) == (Stage.STOP, ReasonKind.LIFETIME, GRACE_S)
    play.send_record("worker-0", snapshot=NEW)
    play.close()
    assert play.at(Stage.STOP)
    assert play.order.sources == [Source("a", 1)]
    play.send_record("worker-1", snapshot=NEW)
    assert (play.result.outcome, play.result.reason_kind) == (Outcome.FAILED, ReasonKind.LIFETIME)
    assert "--max-duration" in play.result.reason


@pytest.mark.parametrize("lifetime_s", [None, 7200.0])
def test_a_job_without_activity_ends_with_its_checkpoint_on_all_hosts(lifetime_s: float | None) -> None:
    play = Play(2, AGAIN._replace(idle_timeout_s=1800.0), grace_s=GRACE_S).start()
    end_at = None if lifetime_s is None else play.now + lifetime_s + LEAD_S
    play.report_all(snapshot=OLD, source=Source("a", 1), end_at=end_at, inactive_s=9000.0)  # of the time before
    play.wait(1799.0)
    assert play.at(Stage.GO)
    play.wait(1.0)
    state = play.order
    assert (state.stage, state.reason.kind, state.grace_s) == (Stage.STOP, ReasonKind.LIFETIME, GRACE_S)
    play.send_record("worker-0", snapshot=NEW)
    play.close()
    assert play.at(Stage.STOP)
    play.wait(30.0)
    assert play.at(Stage.STOP)
    left_s = LEAD_S - 35.0
    assert scheduling.deadline(play.gang, play.now) == play.now + left_s
    play.wait(left_s)
    assert (play.result.outcome, play.result.reason_kind) == (Outcome.FAILED, ReasonKind.LIFETIME)
    assert play.result.reason == "no task was active for 30 min (--idle-timeout of the hosts)"


@pytest.mark.parametrize("active", ["worker-0", "evaluator-0"])
def test_a_job_with_one_active_task_continues(active: str) -> None:
    tasks = ("worker-0", "worker-1", "evaluator-0")
    play = Play(3, AGAIN._replace(idle_timeout_s=1800.0), tasks=tasks).start()
    play.now += 9000.0
    for number, task in enumerate(tasks):
        play.send_record(f"worker-{number}", inactive_s=0.0 if task == active else 9000.0)
    assert play.at(Stage.GO)
