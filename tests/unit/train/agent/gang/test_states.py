"""Clocks that differ change the common start by at most its delay."""

from __future__ import annotations

import pytest

from train.agent.gang.states import DesiredState, Stage


@pytest.mark.parametrize(
    ("now", "left_s"),
    [
        (100.0, 0.25),
        (100.125, 0.125),
        (100.25, 0.0),
        (107.0, 0.0),  # the clock is ahead of the leader's, or the message was late
        (93.0, 0.25),  # the clock is behind the leader's
    ],
)
def test_a_task_starts_at_the_common_time(now: float, left_s: float) -> None:
    state = DesiredState(1, "worker-0", 1, Stage.GO, [], start_at=100.25, start_delay_s=0.25)
    assert state.time_to_start_s(now) == left_s
