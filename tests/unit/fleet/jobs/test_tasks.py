"""The warning that each task of a job trained alone."""

from __future__ import annotations

from fleet.jobs.evidence import Evidence
from fleet.jobs.tasks import independence_warning
from train.agent.protocol.records import Exit, JobResult, Member, Outcome, Phase, TaskState

SUCCEEDED = JobResult("j-1", 2, Outcome.SUCCEEDED, 9.0)


def test_all_tasks_without_a_listener() -> None:
    warning = independence_warning(SUCCEEDED, [("worker-0", False), ("worker-1", False), ("evaluator-0", None)])
    assert "no task opened its port: each of the 2 tasks trained alone" in warning
    assert "MultiWorkerMirroredStrategy()" in warning
    for listened in (True, None):
        assert independence_warning(SUCCEEDED, [("worker-0", False), ("worker-1", listened)]) == ""
    assert independence_warning(SUCCEEDED, [("chief-0", False), ("evaluator-0", False)]) == ""


def test_only_the_last_attempt_counts_and_all_of_its_tasks_must_be_known() -> None:
    evidence = Evidence(
        [Member(f"worker-{index}", f"worker-{index}", "10.0.0.2", 2222 + index, 4000) for index in range(2)]
    )
    ended = TaskState("worker-0", "worker-0", 2, Phase.EXITED, 2.0, exit=Exit(0), listened=False)
    evidence.add(ended._replace(attempt=1, listened=True), b"")
    evidence.add(ended, b"")
    result = SUCCEEDED._replace(exits={"worker-0": Exit(0), "worker-1": Exit(0)})
    assert evidence.independence_warning(result) == ""
    evidence.add(ended._replace(slot="worker-1", task="worker-1"), b"")
    assert "each of the 2 tasks" in evidence.independence_warning(result)
