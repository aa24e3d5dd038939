"""`fleet logs`: show the log of a job, byte for byte, from any terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import NotFoundError
from fleet.events import JobStarted, Level, Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import fleet_opened, newest_reports, open_some
from fleet.fleets.agreement import description, latest_attempt
from fleet.fleets.rejoin import missing_slots
from fleet.fleets.repair import Rented, fix, mending
from fleet.jobs.follow import Followed, follow, outcome_or_raise
from fleet.jobs.policy import SPOT_HOST_TIMEOUT_S
from fleet.jobs.results import report_results, script_of
from fleet.jobs.tasks import Names, names_of, worker_name
from fleet.ports import Ports
from fleet.state import FleetRecord
from fleet.steps import Step
from train.agent.gang.assignment import role_rank
from train.agent.protocol.records import JobReport, JobResult

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel
    from fleet.remote.fanout import Outcome


@dataclass(frozen=True)
class LogsRequest:
    """What the user typed; `lines` None: all; `worker` ``all``, ``1`` or a task; an empty `job`: the newest."""

    fleet: str
    follow: bool = False
    lines: int | None = None
    worker: str = "all"
    job: str = ""


def _hosts_of(name: str, record: FleetRecord, names: Names) -> list[str]:
    """The hosts that have the task `name`, or all."""
    hosts = [host.name for host in record.places]
    if not name:
        return hosts
    if name not in map(names.of, hosts):
        tasks = sorted(map(names.of, hosts), key=role_rank)
        raise NotFoundError(
            f"fleet {record.spec.name!r} has no {name}",
            cause=f"its tasks are {', '.join(tasks)}" if names.by_host else f"it has {hosts[0]} to {hosts[-1]}",
            next_steps=[Step("status")],
        )
    return [names.host_of(name)]


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
    directory, record = ports.store.need(request.fleet)
    fleet = Rented(record, directory, ports, "logs")
    with contextlib.ExitStack() as stack:
        channels, unreached = stack.enter_context(
            open_some(record.places, directory.key, Access(record.spec, ports, sink))
        )
        found = newest_reports(channels, request.job, record.last_job)
        reports = found.by_host
        unreached += found.failed
        failed = {outcome.host.name for outcome in unreached}
        channels = [channel for channel in channels if channel.connection.host.name not in failed]
        names = _names(reports)
        hosts = _hosts_of(name, record, names)
        if not request.follow or record.spec.cloud is None:
            silent = [outcome for outcome in unreached if name and outcome.host.name in hosts]
            raise_failures(silent, "show its log")
        if not reports:
            what = f"no job {request.job}" if request.job else "no job yet"
            raise NotFoundError(f"fleet {request.fleet!r} has {what}", next_steps=[Step("status")])
        first = description(list(reports.values()))
        for text in found.others:
            sink.emit(Note(text, Level.WARNING))
        _announce(record, first, latest_attempt(list(reports.values()), first.attempts), names, sink)
        _, lost = missing_slots(reports)
        mender = stack.enter_context(mending(fleet, sink, SPOT_HOST_TIMEOUT_S)) if request.follow else None
        if mender is not None:
            for host in lost:
                mender.lost(host)
        else:
            _tell(unreached, sink)
        followed = Followed(
            directory=directory,
            record=record,
            job=first.job,
            channels=tuple(channel for channel in channels if channel.connection.host.name in hosts),
            members=names.members(first.members),
            spares=tuple(first.spares),
            attempts=first.attempts,
            lines=request.lines,
            follow=request.follow,
            mender=mender,
            lost=tuple(one.host for one in unreached if one.host.name in hosts) if mender is not None else (),
            names=names,
            unread=ports.unread,
        )
        ended = follow(followed, sink)
        if ended.result is not None:
            directory.note_results(first.job, log_shown=followed.whole)
            report_results(record, directory, first.job, followed.channels, sink)
    if lost and not request.follow:
        fix(fleet, sink)
    return outcome_or_raise(ended)


def _tell(unreached: Sequence[Outcome[AgentChannel]], sink: Sink) -> None:
    for outcome in unreached:
        if outcome.error is not None:
            sink.emit(Note(f"{outcome.error.message}; its log is left out", Level.WARNING))


def _names(reports: Mapping[str, JobReport]) -> Names:
    """How people know the tasks of the job of which hosts tell."""
    if not reports:
        return Names()
    first = description(list(reports.values()))
    return names_of(first.members, first.roles, reports)


def _announce(record: FleetRecord, report: JobReport, attempt: int, names: Names, sink: Sink) -> None:
    sink.emit(fleet_opened(record))
    sink.emit(
        JobStarted(
            job=report.job,
            script=script_of(report),
            attempt=attempt,
            members=names.members(report.members),
            started_at=report.started_at,
            attached=True,
            spares=tuple(report.spares),
            attempts=report.attempts,
            hosts=names.hosts(),
        )
    )
