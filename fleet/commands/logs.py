"""`fleet logs`: show the log of a job, byte for byte, from any terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.commands.agents import fleet_opened, newest_reports, open_some
from fleet.commands.follow import Followed, follow, outcome_or_raise
from fleet.commands.mend import missing_seats
from fleet.commands.policy import SPOT_HOST_TIMEOUT_S
from fleet.commands.repair import Rented, mend, mending
from fleet.commands.status import script_of
from fleet.errors import NotFoundError, UsageError
from fleet.events import JobStarted, Level, Note, Sink
from fleet.ports import Ports
from fleet.state import FleetRecord
from provision.names import index_of, instance_name
from train.agent.records import JobReport, JobResult

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel
    from fleet.remote.fanout import Outcome


@dataclass(frozen=True)
class LogsRequest:
    """What the user typed; `lines` None: all; `worker` ``all``, ``1`` or ``worker-1``; an empty `job`: the newest."""

    fleet: str
    follow: bool = False
    lines: int | None = None
    worker: str = "all"
    job: str = ""


def worker_name(worker: str) -> str:
    """The worker that ``1`` or ``worker-1`` means; empty for ``all``.

    Raises:
        UsageError: it is no worker.
    """
    if worker == "all":
        return ""
    try:
        return instance_name(int(worker) if worker.isascii() and worker.isdigit() else index_of(worker))
    except ValueError:
        raise UsageError(f"--worker {worker} is no worker", next_step="--worker 0, worker-0 or all") from None


def _tasks(name: str, record: FleetRecord) -> list[str]:
    names = [host.name for host in record.hosts]
    if name and name not in names:
        raise NotFoundError(
            f"fleet {record.spec.name!r} has no {name}",
            cause=f"it has {names[0]} to {names[-1]}",
            next_step="fleet status",
        )
    return [name] if name else names


def run(request: LogsRequest, ports: Ports, sink: Sink) -> JobResult:
    """Show what a job has written, and with `follow` what it writes, until it ends.

    Raises:
        NotFoundError: there is no such fleet, worker or job.
        FleetError: no host can be reached, or not the one that is asked for.
        JobFailedError: the job failed.
        JobNotFinished: the job goes on.
        CancelledError: the job was stopped.
    """
    from fleet.remote.fanout import raise_failures

    name = worker_name(request.worker)
    folder, record = ports.store.need(request.fleet)
    tasks = _tasks(name, record)
    fleet = Rented(record, folder, ports, "logs")
    with contextlib.ExitStack() as stack:
        channels, unreached = stack.enter_context(open_some(record.hosts, folder.key))
        if not request.follow or record.spec.cloud is None:
            raise_failures([outcome for outcome in unreached if outcome.host.name == name], "show its log")
        reports = newest_reports(channels, request.job)
        if not reports:
            what = f"no job {request.job}" if request.job else "no job yet"
            raise NotFoundError(f"fleet {request.fleet!r} has {what}", next_step="fleet status, fleet train task.py")
        first = max(reports.values(), key=lambda report: report.attempt)
        _announce(record, first, sink)
        _, lost = missing_seats(reports)
        mender = stack.enter_context(mending(fleet, sink, SPOT_HOST_TIMEOUT_S)) if request.follow else None
        if mender is not None:
            for host in lost:
                mender.lost(host)
        else:
            _tell(unreached, sink)
        followed = Followed(
            folder=folder,
            record=record,
            job=first.job,
            channels=tuple(channel for channel in channels if channel.connection.host.name in tasks),
            members=tuple(first.members),
            spares=tuple(first.spares),
            attempts=first.attempts,
            lines=request.lines,
            follow=request.follow,
            mender=mender,
            lost=tuple(one.host for one in unreached if one.host.name in tasks) if mender is not None else (),
        )
        ended = follow(followed, sink)
    if lost and not request.follow:
        mend(fleet, sink)
    return outcome_or_raise(ended)


def _tell(unreached: Sequence[Outcome[AgentChannel]], sink: Sink) -> None:
    for outcome in unreached:
        if outcome.error is not None:
            sink.emit(Note(f"{outcome.error.sentence}; its log is left out", Level.WARNING))


def _announce(record: FleetRecord, report: JobReport, sink: Sink) -> None:
    sink.emit(fleet_opened(record))
    sink.emit(
        JobStarted(
            job=report.job,
            script=script_of(report),
            attempt=max(1, report.attempt),
            members=tuple(report.members),
            started_at=report.started_at,
            attached=True,
            spares=tuple(report.spares),
            attempts=report.attempts,
        )
    )
