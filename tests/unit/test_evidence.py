from __future__ import annotations

from fleet.commands.evidence import Evidence
from train.agent.records import Exit, JobResult, Log, Member, Outcome, Phase, TaskState
from train.diagnosis import Kind
from train.diagnosis.model import LARGEST_TAIL

MEMBERS = (Member("worker-0", "10.0.0.2", 2222, 4000), Member("worker-1", "10.0.0.3", 2222, 4000))
TRACEBACK = b'Traceback (most recent call last):\n  File "task.py", line 4, in <module>\n    fail()\nValueError: no\n'


def result(outcome: Outcome = Outcome.FAILED) -> JobResult:
    exits = {"worker-0": Exit(signal=15), "worker-1": Exit(code=1)}
    return JobResult("j", 1, outcome, 5.0, "worker-1", "worker-1 exited with code 1", exits)


def collected() -> Evidence:
    evidence = Evidence(MEMBERS)
    evidence.add(Log("worker-0", 1, 0, 3), b"up\n")
    evidence.add(Log("worker-1", 1, 0, len(TRACEBACK)), TRACEBACK)
    evidence.add(TaskState("worker-1", 1, Phase.EXITED, 3.0, exit=Exit(code=1)), b"")
    evidence.add(TaskState("worker-0", 1, Phase.STOPPING, 3.1), b"")
    evidence.add(TaskState("worker-0", 1, Phase.EXITED, 3.2, exit=Exit(signal=15)), b"")
    return evidence


def test_the_task_that_raised_is_named_and_not_the_one_that_was_stopped() -> None:
    verdict = collected().verdict(result())
    assert verdict is not None
    assert (verdict.task, verdict.kind) == ("worker-1", Kind.SCRIPT_EXCEPTION)
    assert "ValueError: no" in verdict.sentence


def test_a_job_that_succeeded_has_no_cause() -> None:
    assert collected().verdict(result(Outcome.SUCCEEDED)) is None


def test_of_a_long_log_the_last_words_are_kept_and_memory_is_bounded() -> None:
    evidence = Evidence(MEMBERS)
    for number in range(64):
        evidence.add(Log("worker-1", 1, number, 100_000), b"x" * 99_999 + b"\n")
    assert len(evidence._tails["worker-1"]) <= 2 * LARGEST_TAIL
    evidence.add(Log("worker-1", 1, 0, len(TRACEBACK)), TRACEBACK)
    verdict = evidence.verdict(result())
    assert verdict is not None
    assert "ValueError" in verdict.sentence
