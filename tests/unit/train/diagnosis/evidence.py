"""Evidence of made-up tasks, and its diagnosis."""

from __future__ import annotations

from train.agent.protocol.records import NO_REASON, Exit, Outcome, Reason
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import TaskEvidence, Verdict

FAILED, KILLED, DONE = Exit(1), Exit(None, 9), Exit(0)
E = "tensorflow.python.framework.errors_impl."
LOST = E + "UnavailableError: Collective ops is aborted by: Socket closed"
STARTED = "I0000 00:00:1795232285.946913 1 grpc_server_lib.cc:467] Started server with target: grpc://10.0.0.2:2222\n"


def raised(exception: str, *calls: str, source: str = "go()") -> str:
    """Return a traceback as CPython prints it; `calls` are files with lines, ``task.py:3``."""
    frames = "".join(
        f'  File "/job/{call.split(":")[0]}", line {call.split(":")[1]}, in main\n    {source}\n'
        for call in calls or ["task.py:7"]
    )
    return f"Traceback (most recent call last):\n{frames}{exception}\n"


def task(number: int, ended: Exit | None, log: str = "", **more: object) -> TaskEvidence:
    """Return the evidence of a worker."""
    fields: dict[str, object] = {"exited_at": 100.0 + number, "log_tail": log.encode(), **more}
    return TaskEvidence(f"worker-{number}", f"10.0.0.{number + 2}", ended, **fields)  # type: ignore[arg-type]


def diagnosed(
    *evidence: TaskEvidence, first: str = "", outcome: Outcome = Outcome.FAILED, reason: Reason = NO_REASON
) -> Verdict:
    """Return the verdict on a job that failed."""
    verdict = diagnose(evidence, outcome, first, reason)
    assert verdict is not None
    return verdict
