"""Following a job: what the agents report becomes events, until the job ends or the user has seen enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.commands.evidence import Evidence
from fleet.errors import CancelledError, JobFailedError, JobNotFinished, NotReadyError
from fleet.events import ConnectionLost, ConnectionRestored, JobDiagnosed, Level, LogChunk, Note, Sink
from fleet.state import FleetFolder, FleetRecord
from provision.model import Host
from train.agent.records import Follow, JobResult, Log, Member, Notice, Outcome, Phase, Progress, TaskState, Usage

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel
    from fleet.remote.follower import Follower, Item
    from train.diagnosis import Verdict


@dataclass(frozen=True)
class Followed:
    """A job to follow.

    Attributes:
        folder: Files of its fleet.
        record: Its fleet.
        job: Its identifier.
        channels: Open conversations with the hosts to follow.
        members: All tasks of the job.
        lines: Of the logs only the last so many lines; None: all.
        follow: Go on until the job ends.
        logs: Send the logs.
    """

    folder: FleetFolder
    record: FleetRecord
    job: str
    channels: tuple[AgentChannel, ...]
    members: tuple[Member, ...] = ()
    lines: int | None = None
    follow: bool = True
    logs: bool = True

    @property
    def whole(self) -> bool:
        """Whether all that the job's tasks wrote is seen."""
        return self.logs and self.lines is None and len(self.channels) == len(self.members)


@dataclass(frozen=True)
class Ended:
    """What following a job came to.

    Attributes:
        result: How the job ended; None where it goes on.
        verdict: Its first cause, where it failed and all of its logs were followed.
    """

    result: JobResult | None
    verdict: Verdict | None = None


def _follower(followed: Followed) -> Follower:
    from fleet.remote.channel import open_agent
    from fleet.remote.follower import Follower

    tail = -1 if followed.lines is None else followed.lines
    channels = {channel.connection.host.name: channel for channel in followed.channels}
    requests = [
        (
            channel.connection.host,
            Follow(
                followed.job,
                channel.connection.host.name,
                tail_lines=tail,
                logs=followed.logs,
                follow=followed.follow,
            ),
        )
        for channel in followed.channels
    ]

    def reopen(host: Host) -> AgentChannel:
        return open_agent(host, followed.folder.key)

    return Follower(requests, reopen, channels=channels)


def follow(followed: Followed, sink: Sink, until: Callable[[Item], bool] = lambda _: False) -> Ended:
    """Emit what happens to a job.

    Args:
        followed: The job.
        sink: Takes the events.
        until: Ends the following early.

    Returns:
        How the job ended.

    Raises:
        JobNotFinished: Ctrl-C.
        FleetError: a host did not come back, and no other told how the job ended.
    """
    results: list[JobResult] = []
    evidence = Evidence(followed.members)
    noticed: set[str] = set()
    try:
        with _follower(followed) as follower:
            for item in follower:
                if isinstance(item.record, JobResult):
                    results.append(item.record)
                elif isinstance(item.record, Notice):
                    _tell_once(item.record.text, noticed, sink)
                else:
                    _emit(item, sink)
                    evidence.add(item.record, item.payload)
                if until(item):
                    break
    except KeyboardInterrupt:
        raise detached(followed.job) from None
    result = agreed(results)
    if result is None:
        return Ended(None)
    sink.emit(result)
    verdict = evidence.verdict(result) if followed.whole and result.started else None
    if verdict is not None:
        sink.emit(
            JobDiagnosed(
                result.job,
                verdict.task,
                verdict.kind.value,
                verdict.sentence,
                verdict.lines,
                verdict.traceback,
                verdict.consequences,
                verdict.next_step,
            )
        )
    return Ended(result, verdict)


def detached(job: str) -> JobNotFinished:
    """What a Ctrl-C comes to once a job runs."""
    return JobNotFinished(
        f"detached; job {job} goes on", next_step="fleet logs -f to come back, fleet stop to end it"
    )


def agreed(results: list[JobResult]) -> JobResult | None:
    """What the hosts' results amount to: one that knows how the job ended, before one that lost sight of it."""
    known = [result for result in results if result.outcome is not Outcome.LOST]
    return next(iter(known or results), None)


def _tell_once(text: str, told: set[str], sink: Sink) -> None:
    # Every host tells it.
    if text not in told:
        told.add(text)
        sink.emit(Note(text, Level.WARNING))


def _emit(item: Item, sink: Sink) -> None:
    record = item.record
    if isinstance(record, Log):
        sink.emit(LogChunk(record.task, record.attempt, record.offset, item.payload))
    elif isinstance(record, (TaskState, Progress, Usage, ConnectionLost, ConnectionRestored)):
        sink.emit(record)


def until_running(followed: Followed, sink: Sink) -> Ended:
    """Wait until every task runs user code, or the job has ended."""
    waiting = {channel.connection.host.name for channel in followed.channels}

    def all_run(item: Item) -> bool:
        if isinstance(item.record, TaskState) and item.record.phase in (Phase.RUNNING, Phase.EXITED):
            waiting.discard(item.host)
        return not waiting

    return follow(followed, sink, until=all_run)


def outcome_or_raise(ended: Ended) -> JobResult:
    """The result of a job that succeeded.

    Raises:
        NotReadyError: it failed before any user code ran.
        JobFailedError: it failed, or nobody can tell how it ended.
        JobNotFinished: it goes on.
        CancelledError: it was stopped.
    """
    result = ended.result
    if result is None:
        raise JobNotFinished("the job is still running", next_step="fleet logs -f")
    if result.outcome is Outcome.CANCELLED:
        raise CancelledError(f"job {result.job} was stopped", next_step="fleet train starts another")
    if result.outcome is Outcome.FAILED and not result.started:
        raise _not_started(result)
    if result.outcome is not Outcome.SUCCEEDED:
        raise _failure(result, ended.verdict)
    return result


def _not_started(result: JobResult) -> NotReadyError:
    reasons = result.reason.splitlines()
    next_step = "fleet status shows the hosts; fleet train again"
    if len(reasons) == 1:
        return NotReadyError(f"job {result.job} was not started: {reasons[0]}", next_step=next_step)
    return NotReadyError(f"job {result.job} was not started", cause="\n".join(reasons), next_step=next_step)


def _failure(result: JobResult, verdict: Verdict | None) -> JobFailedError:
    from train.diagnosis import Kind

    known = verdict is not None and verdict.kind is not Kind.UNKNOWN
    sentence = verdict.sentence if verdict and known else result.reason
    task = (verdict.task if verdict else "") or result.first_task
    logs = f"fleet logs -n 50 --worker {task}" if task else "fleet logs -n 50"
    return JobFailedError(
        f"job {result.job} failed: {sentence}" if sentence else f"job {result.job} failed",
        cause=f"{_heading(verdict, task)}{lines}" if verdict and (lines := "\n".join(verdict.lines)) else "",
        next_step=f"{verdict.next_step}; {logs}" if verdict and verdict.next_step else logs,
    )


def _heading(verdict: Verdict, task: str) -> str:
    """What stands before lines that do not tell the cause themselves."""
    from train.diagnosis import Kind

    headings = {
        Kind.UNKNOWN: f"not known; the last words of {task or 'the log'}:\n",
        Kind.KILLED: f"the last words of {task or 'the log'}:\n",
    }
    return headings.get(verdict.kind, "")
