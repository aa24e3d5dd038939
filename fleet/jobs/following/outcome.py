"""The error with which a command ends after the job that it followed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import CancelledError, JobFailedError, JobNotFinished, NotReadyError
from fleet.jobs.following.follow import Ended
from fleet.steps import Again, NextStep, Shell, Step
from train.agent.protocol.records import JobResult, Outcome
from train.diagnosis.verdict import Cause, Verdict

# An error quotes at most this many rows of the log, so that it fits on a terminal of 80 x 24 with its other parts.
_QUOTED_ROWS = 8
_QUOTED_COLUMNS = 73
_TRACEBACK = "Traceback (most recent call last):"


def outcome_or_raise(ended: Ended) -> JobResult:
    """Return the result of a job if it succeeded.

    Raises:
        NotReadyError: the job failed before any user code ran.
        JobFailedError: the job failed, or its result is unknown.
        JobNotFinished: the job is still running.
        CancelledError: the job was stopped.
    """
    result = ended.result
    if result is None:
        raise JobNotFinished("the job is still running", next_steps=[Step("logs", "-f")])
    if result.outcome is Outcome.CANCELLED:
        raise CancelledError(
            f"job {result.job} was stopped", next_steps=[*_resume(ended, result), Step("logs", "-n", "50")]
        )
    if result.outcome is Outcome.FAILED and not result.started:
        raise _not_started(result)
    if result.outcome is not Outcome.SUCCEEDED:
        failure = _failure(result, ended.verdict)
        raise failure.replaced(next_steps=[*failure.next_steps, *_resume(ended, result)])
    return result


def _resume(ended: Ended, result: JobResult) -> list[NextStep]:
    return [Again({"--resume": result.job}, "train")] if ended.resumable else []


def _not_started(result: JobResult) -> NotReadyError:
    reasons = result.reason.splitlines()
    if len(reasons) == 1:
        return NotReadyError(f"job {result.job} was not started: {reasons[0]}", next_steps=[Step("status")])
    return NotReadyError(f"job {result.job} was not started", cause="\n".join(reasons), next_steps=[Step("status")])


def _failure(result: JobResult, verdict: Verdict | None) -> JobFailedError:
    message = verdict.message if verdict else result.reason
    task = (verdict.task if verdict else "") or result.first_failed_task
    logs = Step("logs", "-n", "50", *(["--worker", task] if task else []))
    return JobFailedError(
        f"job {result.job} failed: {message}" if message else f"job {result.job} failed",
        cause=_quoted(verdict, task) if verdict else "",
        hint=verdict.hint if verdict else "",
        next_steps=[*_fetch(verdict.downloads if verdict else (), result.job), logs],
    )


def _fetch(downloads: Sequence[str], job: str) -> Iterator[NextStep]:
    """Yield the commands that download files on this computer, and send them to where the hosts look for them."""
    for url, path in (item.split(" ", 1) for item in downloads):
        directory, _, name = (path or urlsplit(url).path).rpartition("/")
        # The host chose the name: nothing of this computer is replaced.
        here = str(Path.home() / ".cache/fleet-downloads" / name)
        yield Shell(shlex.join(["curl", "-fL", "--create-dirs", "-o", here, url]))
        yield Step("push", *(["--to", directory.removeprefix("~/")] if path else []), here)
    if downloads and not any(item.endswith(" ") for item in downloads):  # else the script downloads it again
        yield Step("rerun", job)


def _quoted(verdict: Verdict, task: str) -> str:
    """Return the lines of the log to quote after the error's message, so few that the whole error fits on a screen.

    The log shows the traceback of an exception, and the message its last line: quoting the location is enough.
    """
    if verdict.traceback and verdict.kind is not Cause.HANG:
        return "" if verdict.traceback in verdict.message else f"raised at {verdict.traceback}"
    headings = {
        Cause.UNKNOWN: f"unknown; last output of {task or 'the log'}:",
        Cause.KILLED: f"last output of {task or 'the log'}:",
    }
    is_traceback = verdict.lines[:1] == (_TRACEBACK,)
    relevant = [line for line in verdict.lines[is_traceback:] if not (is_traceback and line.startswith(" "))]
    if is_traceback and relevant and relevant[0].partition(":")[0].rpartition(".")[2] in verdict.message:
        return ""
    lines = [line if len(line) <= _QUOTED_COLUMNS else line[: _QUOTED_COLUMNS - 1] + "…" for line in relevant]
    lines = lines[:_QUOTED_ROWS] if is_traceback else lines[-_QUOTED_ROWS:]
    return "\n".join([headings[verdict.kind], *lines] if verdict.kind in headings and lines else lines)
