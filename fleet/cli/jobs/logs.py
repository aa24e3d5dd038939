"""`fleet logs`: show the log of a job in the order of time, from any terminal."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

import typer

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, JOB, OUTPUT, RAW, SAME_JOB, WORKER, Output, one_job, option, parse_since
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import NotFoundError, UnreachableError, UsageError, fold
from fleet.events import JobStarted, Level, Note
from fleet.fleets.agents import ExistingFleet, description, latest_attempt, newest_reports
from fleet.fleets.repair import missing_slots, repair_fleet, repairing
from fleet.jobs.following.follow import Ended, Followed, follow
from fleet.jobs.following.log_view import Selection
from fleet.jobs.following.outcome import outcome_or_raise
from fleet.jobs.pull import pull_ended
from fleet.jobs.queue import queued, queued_event
from fleet.jobs.results import report_results, result_of
from fleet.jobs.resume import is_resumable
from fleet.jobs.selection import select_reported
from fleet.jobs.tasks import all_members, current_members, worker_name
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome, raise_failures
from fleet.remote.publication import publish
from fleet.state import FleetRecord
from fleet.steps import Step
from train.agent.protocol.cluster import task_rank
from train.agent.protocol.records import JobReport, Member
from train.defaults import SPOT_HOST_TIMEOUT_S

_MANY = 12  # names in a list


def _slots_of(name: str, record: FleetRecord, members: Sequence[Member]) -> list[str]:
    """Return the slot with the task `name`, or with this name itself; all slots if `name` is empty."""
    slots = [host.name for host in record.slots]
    tasks = {member.task: member.slot for member in members if member.task}
    if name and name not in tasks and name not in slots:
        names = sorted(tasks or slots, key=task_rank)
        raise NotFoundError(
            f"fleet {record.spec.name!r} has no {name}",
            cause=f"its tasks are {', '.join(names) if len(names) < _MANY else f'{names[0]} to {names[-1]}'}",
            next_steps=[Step("status")],
        )
    return [tasks.get(name, name)] if name else slots


def _show(fleet: ExistingFleet, reference: str, name: str, selection: Selection, *, follows: bool) -> None:
    """Show the output of a job; with `follows`, continue until it ends.

    Raises:
        NotFoundError: The worker or job does not exist.
        FleetError: no host, or not the requested host, can be reached; or the job succeeded, and a log is left out.
        JobFailedError: the job failed.
        JobNotFinished: the job keeps running.
        CancelledError: the job was stopped.
    """
    record, directory, sink = fleet.record, fleet.directory, fleet.sink
    with contextlib.ExitStack() as stack:
        clients, unreached = stack.enter_context(fleet.open_some(record.slots))
        newest = newest_reports(clients, select_reported(reference, fleet.name), record.last_job)
        reports = newest.by_host
        unreached += newest.failed
        failed = {outcome.host.name for outcome in unreached}
        first = description(list(reports.values())) if reports else None
        slots_of_job = all_members(first, reports) if first else ()
        members = current_members(slots_of_job, reports)
        slots = _slots_of(name, record, members)
        if not follows or not record.spec.options.rents:
            raise_failures([outcome for outcome in unreached if name and outcome.host.name in slots], "show its log")
        if first is None:
            raise NotFoundError(f"fleet {fleet.name!r} has no job yet", next_steps=[Step("status")])
        notes = list(newest.others)
        starts = _announce(fleet, first, list(reports.values()), members)
        lost = [] if starts is not None else missing_slots(reports)
        repairer = stack.enter_context(repairing(fleet, SPOT_HOST_TIMEOUT_S)) if follows else None
        left_out = [outcome for outcome in unreached if repairer is None and outcome.host.name in slots]
        if repairer is None:
            errors = filter(None, (outcome.error for outcome in unreached))
            notes += [f"{error.message}; its log is left out" for error in errors]
        else:
            for host in lost:
                repairer.lost(host)
        for text in notes:
            sink.emit(Note(text, Level.WARNING))
        usable = [client for client in clients if client.host.name not in failed]
        followed = Followed(
            directory=directory,
            record=record,
            job=first.job,
            clients=tuple(client for client in usable if client.host.name in slots),
            others=tuple(client for client in usable if client.host.name not in slots),
            members=slots_of_job,
            max_workers=first.max_workers,
            tasks={member.slot: member.task for member in members},
            attempts=first.attempts,
            selection=selection,
            follow=follows,
            repairer=repairer,
            lost=tuple(outcome.host for outcome in unreached if repairer and outcome.host.name in slots),
            unread=fleet.services.unread,
            starts=starts,
        )
        ended = follow(followed, sink)
        if ended.result is not None:
            directory.note_results(first.job, log_shown=ended.shown and selection.pattern is None)
            stored = report_results(fleet, first.job, followed.clients)
            ended = replace(ended, resumable=is_resumable(stored, directory))
    if lost and not follows:
        repair_fleet(fleet)
    pull_ended(fleet)
    if starts is not None and ended.result is None:
        raise queued(first.job)
    _raise_left_out(ended, left_out, first.job)


def _raise_left_out(ended: Ended, left_out: Sequence[Outcome[AgentClient]], job: str) -> None:
    """Raise an error if the job failed, or if a log was not shown."""
    outcome_or_raise(ended)
    raise_failures(left_out, "show all logs")
    if ended.incomplete:
        raise UnreachableError(
            f"the log of {fold(ended.incomplete)} is incomplete",
            next_steps=[Step("status"), Step("logs", "--worker", ended.incomplete[0], "--job", job)],
        )


def _announce(
    fleet: ExistingFleet, job: JobReport, reports: Sequence[JobReport], members: Sequence[Member]
) -> JobStarted | None:
    """Report which job is shown; return the event of its start if it is queued."""
    fleet.announce()
    started = JobStarted(
        job=job.job,
        script=job.name,
        name=job.job_name or None,
        attempt=latest_attempt(reports, job.attempts),
        members=publish(members),
        started_at=job.started_at,
        attached=True,
        attempts=job.attempts,
        ended=result_of(reports) is not None,
        max_workers=job.max_workers,
    )
    after = next((report.queued_after for report in reports if report.queued_after), "")
    fleet.sink.emit(queued_event(started, after, attached=True) if after else started)
    return started._replace(attached=False) if after else None


_TASK = re.compile(r"[0-9]+|(chief|worker|ps|evaluator)-[0-9]+", re.ASCII)


def _parse_pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}") from None


@command("Jobs", WithJobs)
def logs(
    job: str = JOB,
    follow: bool = option(False, "--follow/--no-follow", "Follow until the job ends.", short="-f"),
    lines: int | None = option(
        None, "--lines", "Show only the last N lines of the newest attempt.", "N", short="-n", min=0, shown="all"
    ),
    since: float | None = option(
        None,
        "--since",
        "Show only output since this time: a duration such as 10m, or a time such as 2026-11-22T19:30.",
        "TIME",
        parser=parse_since,
    ),
    grep: re.Pattern[str] | None = option(
        None, "--grep", "Show only lines that match a regular expression.", "PATTERN", parser=_parse_pattern
    ),
    timestamps: bool = option(False, "--timestamps", "Show the time of each line, in UTC.", short="-t"),
    raw: bool = RAW,
    worker: str = WORKER,
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Show the logs of a job.

    Shows the output of all workers in the order of time. The output of a single worker is not prefixed. Exits with
    the exit code of the job.

    Examples:
      fleet logs --follow
      fleet logs --lines 20 --grep loss
      fleet logs --since 10m --timestamps --worker 1
    """
    if _TASK.fullmatch(job):
        raise UsageError(f"{job!r} is a task, not a job", next_steps=[Step("logs", "--worker", job), Step("jobs")])
    is_text = output is not Output.JSON  # JSON has times in a field, and startup messages
    selection = Selection(
        lines=lines, since=since or 0.0, pattern=grep, timestamps=timestamps and is_text, startup=raw or not is_text
    )
    with session(resolve_fleet(fleet), output, prefix=worker == "all", raw=raw, live=follow) as run:
        name = worker_name(worker)
        _show(run.find_fleet("logs"), one_job(job, same_job), name, selection, follows=follow)
