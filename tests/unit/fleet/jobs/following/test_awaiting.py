from __future__ import annotations

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
        awaited = awaiting.add(fast)
        assert awaited is not None
        assert (awaited.task, awaited.attempt, awaited.cause) == ("worker-1", attempt, "input")
        assert awaiting.add(slow) is None
    assert awaiting.add(fast._replace(attempt=1)) is None
