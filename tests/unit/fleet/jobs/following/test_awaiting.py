from __future__ import annotations

import pytest

from fleet.jobs.following.awaiting import Awaiting
from train.agent.protocol.records import Phase, Progress, TaskState


def test_an_awaited_task_is_reported_once_per_attempt() -> None:
    awaiting = Awaiting()
    for attempt in (1, 2):
        for name in ("worker-0", "worker-1"):
            assert awaiting.add(TaskState(name, name, attempt, Phase.RUNNING, 0.0)) is None
        fast = Progress("worker-0", "worker-0", attempt, 0.0, step_s=0.2, input_s=0.0)
        slow = Progress("worker-1", "worker-1", attempt, 0.0, step_s=0.2, input_s=0.19)
        assert awaiting.add(slow) is None  # the other task is unknown
        assert awaiting.add(fast) is None  # it may be a moment
        assert awaiting.add(slow._replace(at=9.9)) is None
        awaited = awaiting.add(fast._replace(at=10.0))
        assert awaited is not None
        assert (awaited.task, awaited.attempt, awaited.cause) == ("worker-1", attempt, "input")
        assert awaiting.add(slow._replace(at=30.0)) is None
    assert awaiting.add(fast._replace(attempt=1)) is None


@pytest.mark.parametrize("turn_s", [2, 8])
def test_tasks_that_wait_for_each_other_in_turns_are_not_reported(turn_s: int) -> None:
    awaiting = Awaiting()
    tasks = ("worker-0", "worker-1")
    for name in tasks:
        awaiting.add(TaskState(name, name, 1, Phase.RUNNING, 0.0))
    for second in range(120):
        late = tasks[second // turn_s % 2]
        for name, offset_s in zip(tasks, (0.0, 3600.0), strict=True):  # the clocks of the hosts differ
            busy = 0.086 if name == late else 0.02
            at = second + offset_s
            assert awaiting.add(Progress(name, name, 1, at, step_s=0.125, python_s=busy)) is None
