"""Test the reported cause if a supervisor did not start."""

from __future__ import annotations

import os
import signal

from train.agent.requests.commit import start_failure

TRACEBACK = "Traceback (most recent call last):\n"


def ended(how: int) -> int:
    """Return the status of a process that exits with the code `how`, or with -`how` as a signal."""
    child = os.fork()
    if child == 0:
        if how < 0:
            os.kill(os.getpid(), -how)
        os._exit(how)
    return os.waitpid(child, 0)[1]


def test_a_killed_watchdog_is_the_cause_and_not_what_failed_because_of_it() -> None:
    status = ended(-signal.SIGKILL)
    assert start_failure(status, TRACEBACK, in_time=True) == "its watchdog was killed by SIGKILL"


def test_the_last_line_of_the_log_is_the_cause_if_the_watchdog_ended_by_itself() -> None:
    log = TRACEBACK + "OSError: [Errno 28] No space left on device\n"
    assert start_failure(ended(0), log, in_time=True) == "OSError: [Errno 28] No space left on device"
    assert start_failure(ended(3), "", in_time=True) == "its watchdog exited with code 3"


def test_a_watchdog_that_was_ended_at_the_deadline_did_not_report() -> None:
    assert "did not report within" in start_failure(ended(-signal.SIGKILL), TRACEBACK, in_time=False)
