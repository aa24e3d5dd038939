from __future__ import annotations

from fleet.jobs.evidence import Evidence
from train.agent.protocol.records import (
    NO_REASON,
    AttemptEnded,
    Exit,
    JobResult,
    Log,
    Member,
    Outcome,
    Phase,
    Reason,
    TaskState,
)
from train.diagnosis.verdict import LARGEST_HEAD, LARGEST_TAIL, Cause

MEMBERS = tuple(Member(f"worker-{index}", f"worker-{index}", f"10.0.0.{index + 2}", 2222, 4000) for index in range(3))
TWO = MEMBERS[:2]
TRACEBACK = b'Traceback (most recent call last):\n  File "task.py", line 4, in <module>\n    fail()\nValueError: no\n'
LOST = (
    b'Traceback (most recent call last):\n  File "task.py", line 9, in <module>\n    step()\n'
    b"tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Connection timed out\n"
    b"Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling "
    b"/tensorflow.WorkerService/RecvBuf:\n"
)


def result(
    outcome: Outcome = Outcome.FAILED, attempt: int = 1, reason: Reason = NO_REASON, first: str = "worker-1"
) -> JobResult:
    exits = {"worker-0": Exit(signal=15), "worker-1": Exit(code=1)}
    return JobResult("j", attempt, outcome, 5.0, first, reason.text, exits, reason_kind=reason.kind)


def ended(attempt: int = 1) -> AttemptEnded:
    exits = {"worker-0": Exit(signal=15), "worker-1": Exit(code=1)}
    return AttemptEnded("worker-0", attempt, 5.0, "worker-1", "worker-1 exited with code 1", exits, 0.5)


def log(evidence: Evidence, task: str, data: bytes, attempt: int = 1) -> None:
    evidence.add(Log(task, task, attempt, 0, len(data)), data)


def end(evidence: Evidence, task: str, ended: Exit, attempt: int = 1, *, ours: bool = False) -> None:
    if ours:
        evidence.add(TaskState(task, task, attempt, Phase.STOPPING, 3.1), b"")
    evidence.add(TaskState(task, task, attempt, Phase.EXITED, 3.0 + ours, exit=ended), b"")


def collected(attempt: int = 1, evidence: Evidence | None = None) -> Evidence:
    evidence = evidence or Evidence(TWO)
    log(evidence, "worker-0", b"up\n", attempt)
    log(evidence, "worker-1", TRACEBACK, attempt)
    end(evidence, "worker-1", Exit(code=1), attempt)
    end(evidence, "worker-0", Exit(signal=15), attempt, ours=True)
    return evidence


def kept(evidence: Evidence) -> int:
    return sum(len(slot.head) + len(slot.tail) for slots in evidence._attempts.values() for slot in slots.values())


def test_the_end_of_a_long_log_is_kept_and_memory_is_bounded() -> None:
    evidence = Evidence(MEMBERS)
    for number in range(64):
        evidence.add(Log("worker-1", "worker-1", 1, number, 100_000), b"x" * 99_999 + b"\n")
    assert kept(evidence) <= 2 * LARGEST_TAIL + LARGEST_HEAD
    log(evidence, "worker-1", TRACEBACK)
    verdict = evidence.verdict(result())
    assert verdict is not None
    assert "ValueError" in verdict.message


def test_an_attempt_is_complete_when_all_its_tasks_reported_their_exit() -> None:
    evidence = Evidence((*TWO, MEMBERS[2]._replace(task="")))
    assert not evidence.complete(ended(), {})
    end(evidence, "worker-1", Exit(code=1))
    assert not evidence.complete(ended(), {})
    assert evidence.complete(ended(), {"worker-0": "gone"})
    end(evidence, "worker-0", Exit(signal=15))
    assert evidence.complete(ended(), {})
    log(evidence, "worker-2", b"x", 2)
    assert evidence.complete(ended(), {})


def test_a_spare_has_no_part_until_it_takes_over() -> None:
    evidence = collected(evidence=Evidence((*TWO, MEMBERS[2]._replace(task=""))))
    first = evidence.of_attempt(ended())
    assert first is not None
    assert first.task == "worker-1"
    # The task worker-1 is on the slot worker-2 now; the slot worker-1 is gone.
    log(evidence, "worker-0", LOST, 2)
    end(evidence, "worker-0", Exit(code=1), 2)
    evidence.add(TaskState("worker-2", "worker-1", 2, Phase.RUNNING, 2.0), b"")
    exits = {"worker-0": Exit(code=1)}
    last = evidence.verdict(JobResult("j", 2, Outcome.FAILED, 9.0, "worker-0", "worker-0 exited with code 1", exits))
    assert last is not None
    assert (last.kind, last.task, last.consequences) == (Cause.PEER_UNREACHABLE, "worker-1", ("worker-0",))
    assert "worker-1 (10.0.0.4)" in last.message


def test_tasks_trained_alone_only_if_all_of_the_last_attempt_are_known_not_to_have_listened() -> None:
    evidence = Evidence(TWO)
    ended = TaskState("worker-0", "worker-0", 2, Phase.EXITED, 2.0, exit=Exit(0), listened=False)
    evidence.add(ended._replace(attempt=1, listened=True), b"")
    evidence.add(ended, b"")
    succeeded = result(Outcome.SUCCEEDED, 2)
    assert evidence.independence_warning(succeeded) == ""
    evidence.add(ended._replace(slot="worker-1", task="worker-1"), b"")
    assert "each of the 2 tasks trained alone" in evidence.independence_warning(succeeded)
