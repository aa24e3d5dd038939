"""A host that is stopped for maintenance hands its task over to a spare at a checkpoint."""

from __future__ import annotations

import pytest

from tests.unit.train.agent.gang.test_gang import Play
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang.states import Source, Stage
from train.agent.protocol.records import Policy

AGAIN = Policy(restarts=1, backoff_s=0.1, host_timeout_s=30.0)


def leaving(policy: Policy = AGAIN, spares: int = 1) -> Play:
    """Return a running gang; worker-1 has a checkpoint, and its host is stopped for maintenance."""
    play = Play(2 + spares, policy, spares=spares).start()
    play.send_record("worker-0", snapshot=Snapshot(1, 1, "a"), source=Source("a", 1))
    play.send_record("worker-1", leaving=True)
    return play


def test_a_spare_takes_over_at_the_next_complete_checkpoint() -> None:
    play = leaving()
    [notice] = play.order.notices
    assert notice == (
        "worker-1 is stopped for maintenance within an hour; worker-2 takes over at the next complete checkpoint"
    )
    play.wait(600.0)
    assert play.at(Stage.GO)
    play.send_record("worker-0", snapshot=Snapshot(1, 2, "b"))
    state = play.order
    assert (state.stage, state.first_failed_slot) == (Stage.STOP, "worker-1")
    assert "is stopped for maintenance soon" in state.reason.text
    play.close()
    play.wait(1.0)
    members = [(member.slot, member.task) for member in play.order.members]
    assert members == [("worker-0", "worker-0"), ("worker-2", "worker-1")]
    play.start()
    play.send_record("worker-0", snapshot=Snapshot(2, 1, "c"))
    assert play.at(Stage.GO)


@pytest.mark.parametrize(("policy", "spares"), [(AGAIN, 0), (Policy(), 1)])
def test_without_a_spare_or_a_restart_the_job_runs_until_the_host_stops(policy: Policy, spares: int) -> None:
    play = leaving(policy, spares)
    assert play.order.notices == ["worker-1 is stopped for maintenance within an hour"]
    play.send_record("worker-0", snapshot=Snapshot(1, 2, "b"))
    assert play.at(Stage.GO)


def test_planned_maintenance_is_a_warning_once_per_window() -> None:
    play = Play(3, AGAIN, spares=1).start()
    play.send_record("worker-1", window_start=1796205600.0, window_end=1796209200.0)
    play.send_record("worker-1", window_start=1796205600.0, window_end=1796209200.0)
    [notice] = play.order.notices
    assert notice == "maintenance that stops worker-1 is planned: 2026-12-02 10:00 to 2026-12-02 11:00 UTC"
    play.send_record("worker-1", window_start=1796292000.0, window_end=0.0)
    assert play.order.notices[1].endswith("is planned: 2026-12-03 10:00 UTC")
    play.send_record("worker-1", window_start=1796378400.0, window_end=1e30)
    assert play.order.notices[2].endswith("is planned: 2026-12-04 10:00 UTC")
    play.send_record("worker-0", snapshot=Snapshot(1, 1, "a"))
    assert play.at(Stage.GO)
