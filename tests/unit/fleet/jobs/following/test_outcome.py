"""The outcome of a job as the error of the command that followed it."""

from __future__ import annotations

import pytest

from fleet.console.messages import format_error
from fleet.errors import JobFailedError, NotReadyError
from fleet.jobs.following.follow import Ended
from fleet.jobs.following.outcome import outcome_or_raise
from train.agent.protocol.records import Exit, JobResult, Outcome, Reason
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import TaskEvidence, Verdict

FAILED = JobResult("j-1", 1, Outcome.FAILED, 1.0, "worker-1", "worker-1 exited with code 3")


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("no way", "job j-1 was not started: no way", ""),
        ("no way\nno disk", "job j-1 was not started", "no way\nno disk"),
    ],
)
def test_a_job_that_never_started_is_not_ready_and_did_not_fail(reason: str, message: str, cause: str) -> None:
    with pytest.raises(NotReadyError) as raised:
        outcome_or_raise(Ended(FAILED._replace(reason=reason, started=False)))
    assert (raised.value.exit_code, raised.value.message, raised.value.cause) == (14, message, cause)


ADDRESS = "10.128.0.103"
PATH = "/home/ann/.local/share/fleet/" + "a-long-directory/" * 8 + "jobs/20261122-031314-abcd/worker-1/src/task.py"
TRACEBACK = (
    f'Traceback (most recent call last):\n  File "{PATH}", line 12, in main\n    fit()\n'
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: " + "a long message " * 40 + "\n" + "more\n" * 40
)
WARNINGS = "W0000 00:00:1795232285.946913 77 loader.cc:12] " + "something may be slow " * 12 + "\n"
LOGS = {
    "bar": "".join(f"\r{step}/44 [===>....] - ETA: {44 - step}s - loss: 0.{step}" for step in range(40))
    + WARNINGS * 9,
    "long lines": ("words without an end " * 30 + "\n") * 30,
    "traceback": TRACEBACK,
    "victim": TRACEBACK.replace("a long message", "Collective ops is aborted by: Socket closed", 1),
}


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("ended", [Exit(1), Exit(None, 9), Exit(None, 6)])
def test_the_error_fits_on_a_small_terminal(log: str, ended: Exit) -> None:
    evidence = [TaskEvidence(f"worker-{i}", ADDRESS, ended, 1.0 + i, log_tail=LOGS[log].encode()) for i in (0, 1)]
    verdict = diagnose(evidence, Outcome.FAILED, "worker-0", Reason("worker-0 failed"))
    assert verdict is not None
    text = text_of(verdict)
    rows = sum(-(-len(line) // 80) for line in text.splitlines())
    assert rows <= 22, text
    assert text.startswith("error: job j-1 failed: ")
    assert text.count("Traceback") == 0
    assert text.count("InvalidArgumentError") <= 1
    assert text.count("44 [") <= 1


def text_of(verdict: Verdict) -> str:
    with pytest.raises(JobFailedError) as raised:
        outcome_or_raise(Ended(FAILED, verdict))
    return format_error(raised.value, width=80)
