"""Follow a job: emit what its agents report as events until the job ends or the caller stops."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleet.errors import FleetError, JobNotFinished, NotFoundError
from fleet.events import ConnectionLost, ConnectionRestored, JobDiagnosed, JobStarted, Level, LogChunk, Note, Sink
from fleet.fleets.agents import newest_reports, open_some
from fleet.fleets.repair import Repairer
from fleet.jobs.evidence import Evidence, first_cause
from fleet.jobs.following.log_view import EVERYTHING, LogView, Selection
from fleet.jobs.following.watches import Awaiting, LossWatch
from fleet.jobs.policy import allowed_tasks
from fleet.jobs.queue import queued
from fleet.jobs.restarts import Restarts
from fleet.jobs.results import agree
from fleet.jobs.tasks import added_slots
from fleet.remote.client import AgentClient
from fleet.remote.follower import GIVE_UP_S, Follower, Position
from fleet.remote.merge import Item
from fleet.remote.publication import log_chunk, publish
from fleet.services import announce
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from provision.model import Host
from provision.quantities import counted
from train.agent.protocol.records import (
    AttemptEnded,
    Beat,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Member,
    Notice,
    Outcome,
    Phase,
    Progress,
    ReasonKind,
    Record,
    TaskState,
    Usage,
)
from train.diagnosis.verdict import Verdict

Reported = Record | ConnectionLost | ConnectionRestored | Note

DIAGNOSE_S = 10.0
"""Longest time to wait for the remaining evidence about a failed attempt before its cause is reported, in seconds."""


@dataclass(frozen=True)
class Followed:
    """A job to follow.

    Attributes:
        directory: Files of its fleet.
        record: Its fleet.
        job: Its identifier.
        clients: Open connections to the agents on the hosts to follow.
        members: All slots of the job, with their tasks of the first attempt.
        tasks: The current task of each slot, if it differs from that in `members`.
        attempts: Largest number of attempts; 0: no limit.
        selection: The part of the output to show.
        follow: Follow until the job ends.
        logs: Send the logs.
        repairer: Replaces lost hosts; None: they are not replaced.
        others: Open connections to the agents on the other hosts of the job, whose logs are not followed.
        lost: Hosts to follow as soon as they are replaced.
        max_workers: Number of workers up to which hosts may join the job; None: none may.
        unread: Returns whether the reader of the output is gone.
        starts: The event to emit when the first task of a queued job exists; None: the job is not queued.
    """

    directory: FleetDirectory
    record: FleetRecord
    job: str
    clients: tuple[AgentClient, ...]
    members: tuple[Member, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 1
    selection: Selection = EVERYTHING
    follow: bool = True
    logs: bool = True
    repairer: Repairer | None = None
    others: tuple[AgentClient, ...] = ()
    lost: tuple[Host, ...] = ()
    max_workers: int | None = None
    unread: Callable[[], bool] = lambda: False
    starts: JobStarted | None = None

    @property
    def whole(self) -> bool:
        """Return whether the logs of all tasks are read from their beginning."""
        return self.logs and self.selection.reads_all and len(self.clients) == len(self.members)


@dataclass(frozen=True)
class Ended:
    """The result of following a job.

    Attributes:
        result: The result of the job; None while it is running.
        verdict: The first cause, if the job failed.
        resumable: Whether a new job can continue from a checkpoint of the job.
        shown: Whether the logs of all tasks were shown from the beginning to the end.
        incomplete: The tasks whose log was not shown to its end.
    """

    result: JobResult | None
    verdict: Verdict | None = None
    resumable: bool = False
    shown: bool = False
    incomplete: tuple[str, ...] = ()


def open_follower(followed: Followed, interval_s: float) -> Follower:
    """Return a follower of all hosts of the job.

    Args:
        followed: The job.
        interval_s: Output that follows other output sooner than this, in seconds, is sent together with later output,
            and has one time; 0: each line has its time.
    """
    from fleet.remote.ssh.connection import share_window
    from fleet.remote.ssh.transport import open_agent

    selection, repairer = followed.selection, followed.repairer
    clients = {client.host.name: client for client in followed.clients}
    hosts = (*(client.host for client in followed.clients), *followed.lost)
    request = Follow(
        followed.job,
        "",
        tail_lines=selection.tail_lines,
        attempt=1 if selection.lines is None else 0,
        since=selection.since,
        logs=followed.logs,
        follow=followed.follow,
        interval_s=interval_s,
    )

    def reopen(host: Host) -> AgentClient:
        where = repairer.where(host) if repairer else host
        return open_agent(where, followed.directory.key, window=share_window(len(hosts)))

    def check() -> None:
        if not followed.directory.exists():
            name = followed.record.spec.name
            message = f"fleet {name!r} was deleted while job {followed.job} was followed"
            raise NotFoundError(message, next_steps=[Step("status")])

    return Follower(
        [(host, request._replace(slot=host.name)) for host in hosts],
        reopen,
        clients=clients,
        give_up_s=GIVE_UP_S + (repairer.patience_s if repairer is not None else 0.0),
        replaced=repairer is not None,
        check=check,
        tasks=allowed_tasks(followed.members, followed.max_workers),
    )


def _follow_joining(follower: Follower, followed: Followed, ended: AttemptEnded, interval_s: float) -> None:
    """Follow the hosts that join the job in its next attempt; they are in the fleet's state of this computer."""
    if followed.whole:
        followed_slots = {member.slot for member in followed.members}
        for host in added_slots(followed.record, followed.directory):
            if host.name in ended.joining and host.name not in followed_slots:
                follower.add(host, Follow(followed.job, host.name, attempt=ended.attempt + 1, interval_s=interval_s))


def follow(followed: Followed, sink: Sink, until: Callable[[Item], bool] = lambda _: False) -> Ended:
    """Emit the events of a job until it ends.

    Args:
        followed: The job.
        sink: Takes the events.
        until: Returns True to stop following early.

    Returns:
        The result of the job.

    Raises:
        JobNotFinished: the user pressed Ctrl-C, or the reader of the output is gone, while the job is running.
        NotFoundError: the fleet was deleted while the job was followed.
        FleetError: a host did not come back, and no other host reported the result of the job.
    """
    reporter = _Reporter(followed, sink)
    try:
        interval_s = 0.0 if followed.selection.timestamps else getattr(sink, "interval_s", 0.0)
        with open_follower(followed, interval_s) as follower:
            for item in follower:
                reporter.add(item)
                if isinstance(item.record, AttemptEnded) and item.record.joining:
                    _follow_joining(follower, followed, item.record, interval_s)
                if until(item):
                    break
                if followed.unread():
                    return _unread(followed)
            reporter.end_log()
            incomplete = reporter.report_incomplete(follower.incomplete)
    except KeyboardInterrupt:
        raise (queued(followed.job, "detached; ") if reporter.is_queued else detached(followed.job)) from None
    ended = reporter.end()
    return replace(ended, shown=bool(ended.result and followed.whole and not incomplete), incomplete=incomplete)


class _Reporter:
    """Emits the items of a follower: reports of all hosts only once, and the first cause of each failure.

    Args:
        followed: The job.
        sink: Takes the events.
    """

    def __init__(self, followed: Followed, sink: Sink) -> None:
        self._followed = followed
        self._sink = sink
        self._tasks = {member.slot: member.task for member in followed.members} | {**followed.tasks}
        self._evidence = Evidence(followed.members)
        self._results: dict[str, JobResult] = {}  # by host
        self._noticed: set[tuple[int, str]] = set()
        self._restarts = Restarts()
        self._losses = LossWatch()
        self._awaiting = Awaiting()
        # The different ends of each attempt, by task and reason, each with the hosts that report it:
        self._ends: dict[int, dict[tuple[str, str], tuple[AttemptEnded, set[str]]]] = {}
        self._open: dict[int, float] = {}  # failed attempts, and the latest time to report their causes
        self._away: dict[str, object] = {}  # hosts from which no report is expected at present
        self._view = LogView(followed.selection)
        self._starts = followed.starts
        self._behind = {host.name for host in (*(client.host for client in followed.clients), *followed.lost)}

    def add(self, item: Item) -> None:
        """Add the next item."""
        record = item.record
        if not isinstance(record, (ConnectionLost, ConnectionRestored, Note)):
            self._away.pop(item.host, None)
        if isinstance(record, JobResult):
            self._job_result(item.host, record)
        elif isinstance(record, Notice):
            self._notice(record)
        elif isinstance(record, AttemptEnded):
            self._attempt_ended(item.host, record)
        else:
            self._emit(item.host, record, item.payload)
            self._evidence.add(record, item.payload)
            for note in (*self._restarts.add(record), *self._losses.add(record, item.payload)):
                self._sink.emit(note)
        if isinstance(record, (Beat, JobResult, ConnectionLost)) and item.host in self._behind:
            self._behind.discard(item.host)
            if not self._behind:  # what comes now is new
                self._show(self._view.release())
        if self._followed.repairer is not None and not self.is_queued:
            _hint(self._followed.repairer, item.host, record)
        self._diagnose_complete_attempts()

    @property
    def is_queued(self) -> bool:
        """Return whether the job waits for earlier ones: no task of it exists."""
        return self._starts is not None and not self._results

    def _start(self, record: TaskState) -> None:
        """Report that a queued job starts."""
        if self._starts is not None:
            self._sink.emit(self._starts._replace(started_at=record.at))
            self._starts = None

    def _job_result(self, host: str, record: JobResult) -> None:
        if host not in self._results or record.outcome is not Outcome.LOST:
            self._results[host] = record
        self._away[host] = record  # no further record follows

    def _notice(self, record: Notice) -> None:
        if (record.attempt, record.text) not in self._noticed:  # every host reports it
            self._noticed.add((record.attempt, record.text))
            self._sink.emit(Note(record.text, Level.WARNING))

    def _attempt_ended(self, host: str, record: AttemptEnded) -> None:
        if record.attempt not in self._ends and self._followed.whole and record.reason_kind is not ReasonKind.GROWTH:
            self._open[record.attempt] = time.monotonic() + DIAGNOSE_S
        ends = self._ends.setdefault(record.attempt, {})
        end = record.first_failed_task, record.reason
        if end not in ends:  # hosts that lost each other report different ends
            self._sink.emit(publish(record._replace(attempts=record.attempts or self._followed.attempts)))
        ends.setdefault(end, (record, set()))[1].add(host)

    def _emit(self, host: str, record: Reported, payload: bytes) -> None:
        if isinstance(record, TaskState):
            self._start(record)
            self._tasks[host] = record.task
            if record.phase is Phase.EXITED:
                self._show(self._view.end(record.slot))
        if isinstance(record, Log):
            self._show(self._view.add(log_chunk(record, payload)))
        elif isinstance(record, (TaskState, HangInspection, Progress, Usage)):
            self._sink.emit(publish(record))
            awaited = self._awaiting.add(record) if self._followed.whole else None
            if awaited is not None:
                self._sink.emit(awaited)
        elif isinstance(record, Note):
            self._sink.emit(record)
        elif isinstance(record, ConnectionLost):
            if record.retry_s == 0 or not isinstance(self._away.get(host), ConnectionLost):  # not at each retry
                self._sink.emit(record)
            self._away[host] = record
        elif isinstance(record, ConnectionRestored):
            self._away.pop(host, None)
            self._sink.emit(record)

    def _show(self, chunks: Iterable[LogChunk]) -> None:
        for chunk in chunks:
            self._sink.emit(chunk)

    def end_log(self) -> None:
        """Emit the rest of the output, and report what was left out."""
        self._show(self._view.finish())
        for note in self._view.notes():
            self._sink.emit(note)

    def _diagnose_complete_attempts(self) -> None:
        for attempt, latest_at in list(self._open.items()):
            ended, hosts = self._most_reported(attempt)
            agreed = 2 * len(hosts) >= len(self._followed.members) - len(self._away)
            if time.monotonic() >= latest_at or (agreed and self._evidence.complete(ended, self._away)):
                self._diagnose(ended)

    def _most_reported(self, attempt: int) -> tuple[AttemptEnded, set[str]]:
        """Return the end that most hosts report, the first one among equals, and these hosts."""
        return max(self._ends[attempt].values(), key=lambda report: len(report[1]))

    def _diagnose(self, ended: AttemptEnded) -> None:
        del self._open[ended.attempt]
        verdict = self._evidence.of_attempt(ended)
        if verdict is not None:
            self._sink.emit(_diagnosed(self._followed.job, ended.attempt, verdict, final=False))

    def report_incomplete(self, positions: Mapping[str, Position]) -> tuple[str, ...]:
        """Warn about the logs of hosts that could not be reached again; return their tasks.

        A host that could have joined the job, and that no attempt had, has no log.
        """
        if not self._followed.logs:
            return ()
        tasks = {host: self._tasks[host] for host in positions if self._tasks.get(host)}
        for host, task in tasks.items():
            attempt, size = positions[host].reached
            end = f"what was shown ends after {counted(size, 'byte')} of attempt {attempt}"
            shown = end if attempt and size else "nothing of it was shown"
            step = Step("logs", "--worker", task, "--job", self._followed.job)
            command = step.text(self._followed.record.spec.name)
            text = f"the log of {task} is incomplete: {shown}; `{command}` shows all of it once {host} answers"
            self._sink.emit(Note(text, Level.WARNING))
        return tuple(tasks.values())

    def end(self) -> Ended:
        """Emit the result of the job and its cause, and return both."""
        for attempt in list(self._open):
            self._diagnose(self._most_reported(attempt)[0])
        result, disputes = agree(self._results, size=len(self._followed.members), attempts=self._followed.attempts)
        if result is None:
            return Ended(None)
        self._sink.emit(publish(result))
        warnings = filter(None, (*disputes, self._evidence.independence_warning(result)))
        silence = self._evidence.silence(result) if self._followed.whole and self._followed.logs else ""
        notes = [*(Note(text, Level.WARNING) for text in warnings), *self._losses.final(result.attempt)]
        for note in (*notes, *([Note(silence)] if silence else [])):
            self._sink.emit(note)
        awaited = "waiting for the hosts to report the first cause"
        with announce(lambda text: self._sink.emit(Note(text)), lambda: awaited):
            verdict = self._verdict(result)
        if verdict is not None:
            self._sink.emit(_diagnosed(result.job, result.attempt, verdict, final=True))
        return Ended(result, verdict)

    def _verdict(self, result: JobResult) -> Verdict | None:
        if self._followed.whole:
            return self._evidence.verdict(result) if result.started else None
        return first_cause(self._followed.members, result, (*self._followed.clients, *self._followed.others))


def _hint(repairer: Repairer, host: str, record: Reported) -> None:
    """Report to the repairer which hosts are lost and which have returned."""
    if isinstance(record, ConnectionLost):
        repairer.lost(host)
    elif isinstance(record, AttemptEnded) and record.preempted:
        repairer.lost(record.first_failed_slot)
    elif isinstance(record, ConnectionRestored) or (isinstance(record, TaskState) and record.phase is Phase.WAITING):
        repairer.back(host)


def _diagnosed(job: str, attempt: int, verdict: Verdict, *, final: bool) -> JobDiagnosed:
    return JobDiagnosed(job=job, attempt=attempt, final=final, **{**vars(verdict), "kind": verdict.kind.value})


def _unread(followed: Followed) -> Ended:
    """Return the result of a job after its output was abandoned.

    Raises:
        JobNotFinished: the job is still running.
    """
    result = None
    with contextlib.suppress(FleetError), open_some(followed.record.slots, followed.directory.key) as (clients, _):
        reports = newest_reports(clients, lambda _: followed.job).by_host
        results = {host: report.result for host, report in reports.items() if report.result is not None}
        result = agree(results, size=len(followed.members), attempts=followed.attempts).result
    if result is None:
        raise detached(followed.job, "the reader of the output is gone; ")
    return Ended(result)


def detached(job: str, why: str = "") -> JobNotFinished:
    """Return the error that ends a command after Ctrl-C while the job keeps running."""
    return JobNotFinished(f"{why}detached; job {job} keeps running", next_steps=[Step("logs", "-f"), Step("stop")])


def until_running(followed: Followed, sink: Sink) -> Ended:
    """Wait until every task runs user code or the job has ended."""
    waiting = {client.host.name for client in followed.clients}
    waiting -= {member.slot for member in followed.members if not member.task}

    def all_run(item: Item) -> bool:
        if isinstance(item.record, TaskState) and item.record.phase in (Phase.RUNNING, Phase.EXITED):
            waiting.discard(item.host)
        if isinstance(item.record, ConnectionLost) and item.record.retry_s == 0:
            waiting.discard(item.host)
        return not waiting

    return follow(followed, sink, until=all_run)
