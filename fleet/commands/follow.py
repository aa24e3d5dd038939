"""Following a job: what the agents report becomes events, until the job ends or the user has seen enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import CancelledError, JobFailedError, JobNotFinished, NotReadyError
from fleet.events import ConnectionLost, ConnectionRestored, Level, LogChunk, Note, Sink
from fleet.state import FleetFolder, FleetRecord
from provision.model import Host
from train.agent.records import Exit, Follow, JobResult, Log, Notice, Outcome, Phase, Progress, TaskState, Usage

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel
    from fleet.remote.follower import Follower, Item


_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Followed:
    """A job to follow.

    Attributes:
        folder: Files of its fleet.
        record: Its fleet.
        job: Its identifier.
        channels: Open conversations with the hosts to follow.
        lines: Of the logs only the last so many lines; None: all.
        follow: Go on until the job ends.
        logs: Send the logs.
    """

    folder: FleetFolder
    record: FleetRecord
    job: str
    channels: tuple[AgentChannel, ...]
    lines: int | None = None
    follow: bool = True
    logs: bool = True


@dataclass(frozen=True)
class Ended:
    """What following a job came to.

    Attributes:
        result: How the job ended; None where it goes on.
        last_line: Of the output of the task that failed first, as far as its log was followed.
    """

    result: JobResult | None
    last_line: str = ""


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
    tails: dict[str, bytes] = {}
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
                if isinstance(item.record, Log):
                    tails[item.record.task] = (tails.get(item.record.task, b"") + item.payload)[-_TAIL_BYTES:]
                if until(item):
                    break
    except KeyboardInterrupt:
        raise JobNotFinished(
            f"detached; job {followed.job} goes on", next_step="fleet logs -f to come back, fleet stop to end it"
        ) from None
    result = agreed(results)
    if result is None:
        return Ended(None)
    sink.emit(result)
    return Ended(result, _last_line(tails.get(result.first_task, b"")))


def _last_line(tail: bytes) -> str:
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


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
        worker = f" --worker {result.first_task}" if result.first_task else ""
        raised = result.exits.get(result.first_task, Exit()).code
        raise JobFailedError(
            f"job {result.job} failed: {result.reason}" if result.reason else f"job {result.job} failed",
            cause=ended.last_line if raised else "",
            next_step=f"fleet logs -n 50{worker}",
        )
    return result


def _not_started(result: JobResult) -> NotReadyError:
    reasons = result.reason.splitlines()
    next_step = "fleet status shows the hosts; fleet train again"
    if len(reasons) == 1:
        return NotReadyError(f"job {result.job} was not started: {reasons[0]}", next_step=next_step)
    return NotReadyError(f"job {result.job} was not started", cause="\n".join(reasons), next_step=next_step)
