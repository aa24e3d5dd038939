"""What the end of a job means to the command that followed it."""

from __future__ import annotations

import pytest

from fleet.commands.follow import Ended, outcome_or_raise
from fleet.errors import JobFailedError, NotReadyError
from train.agent.records import JobResult, Outcome

FAILED = JobResult("j-1", 1, Outcome.FAILED, 1.0, "worker-1", "worker-1 exited with code 3")


def test_a_job_that_never_started_is_not_ready_and_did_not_fail() -> None:
    with pytest.raises(NotReadyError, match=r"^job j-1 was not started: no way$") as raised:
        outcome_or_raise(Ended(FAILED._replace(reason="no way", started=False)))
    assert (raised.value.exit_code, raised.value.cause) == (14, "")


def test_several_reasons_are_told_line_by_line() -> None:
    with pytest.raises(NotReadyError, match=r"^job j-1 was not started$") as raised:
        outcome_or_raise(Ended(FAILED._replace(reason="no way\nno disk", started=False)))
    assert raised.value.cause == "no way\nno disk"


def test_a_job_that_started_and_failed() -> None:
    with pytest.raises(JobFailedError, match=r"^job j-1 failed: worker-1 exited with code 3$"):
        outcome_or_raise(Ended(FAILED))
