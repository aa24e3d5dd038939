"""The queue of a fleet, whose hosts run one job at a time: 'train --after' adds a job behind the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleet.errors import JobNotFinished, NotReadyError
from fleet.events import JobQueued, JobStarted, Level, Note, Sink
from fleet.fleets.agents import call_each
from fleet.jobs.selection import is_newest, reported_jobs, select_job
from fleet.remote.client import AgentClient
from fleet.state import FleetRecord
from fleet.steps import Again, Step
from train.agent.protocol.records import Inspect, JobReport

Reports = Sequence[tuple[str, JobReport]]


def active_jobs(reports: Reports) -> list[str]:
    """Return the running job and the queued jobs, in the order in which they run.

    Args:
        reports: Each host with each of its reports.
    """
    active: dict[str, list[JobReport]] = {}
    for _, report in reports:
        if report.alive and report.result is None:
            active.setdefault(report.job, []).append(report)

    def position(job: str) -> tuple[bool, float, str]:
        is_queued = Counter(bool(report.queued_after) for report in active[job]).most_common(1)[0][0]
        times = sorted(report.started_at for report in active[job])
        return is_queued, times[(len(times) - 1) // 2], job

    return sorted(active, key=position)


def queued_jobs(reports: Reports) -> list[str]:
    """Return the jobs that wait for earlier ones, in the order in which they run."""
    queued = {report.job for _, report in reports if report.queued_after}
    return [job for job in active_jobs(reports) if job in queued]


def choose_place(reference: str, reports: Reports, fleet: str) -> tuple[str, str]:
    """Return the job after which a new one is queued, and a note about what the user may not expect.

    Each may be empty: without a job, the new one starts at once.

    Args:
        reference: The other job, as in `select_job`; the newest one means the last of the queue.
        reports: Each host with each of its reports.
        fleet: Name of the fleet, for errors.

    Raises:
        NotFoundError: the job does not exist; the error names the most similar one.
        UsageError: several jobs are meant.
    """
    active = active_jobs(reports)
    if is_newest(reference):
        if active:
            return active[-1], ""
        if not reports:
            return "", "the fleet has no earlier job; the job starts now"
    named = select_job(reference, reported_jobs(reports), fleet)
    if not active:
        return "", f"job {named} has already ended; the job starts now"
    if named not in active:
        return active[-1], f"job {named} has already ended"
    return active[-1], f"other jobs are queued after job {named} already" if named != active[-1] else ""


_MOST_JOBS = 1000  # of a host


def read_reports(clients: Sequence[AgentClient]) -> list[tuple[str, JobReport]]:
    """Return each host that answers with each of its reports."""
    answers = call_each(clients, lambda client: client.inspect(Inspect(_MOST_JOBS)))
    return [(answer.host.name, report) for answer in answers for report in answer.value or ()]


def find_place(reference: str | None, clients: Sequence[AgentClient], record: FleetRecord, sink: Sink) -> str:
    """Return the job after which a new job is queued; empty: it starts at once.

    Args:
        reference: The job to wait for, as in `select_job`; None: none.
        clients: Connections to the agents.
        record: The fleet.
        sink: Takes a note about what the user may not expect.

    Raises:
        NotFoundError: the job does not exist; the error names the most similar one.
        UsageError: several jobs are meant.
    """
    if reference is None:
        return ""
    after, note = choose_place(reference, read_reports(clients), record.spec.name)
    if note:
        sink.emit(Note(note))
    return after


def conflict(job: str, record: FleetRecord, *, is_queued: bool) -> NotReadyError:
    """Return the error of a job with another number of tasks per host than the running one."""
    if not is_queued:
        return NotReadyError(
            f"job {job} is running on fleet {record.spec.name!r}", next_steps=[Step("logs", "-f"), Step("stop")]
        )
    return NotReadyError(
        f"job {job} runs with --tasks-per-host {record.tasks_per_host}, and a job that is queued after it requires"
        " the same number",
        next_steps=[Again({"--tasks-per-host": str(record.tasks_per_host)}), Step("logs", "-f")],
    )


def announce_next(reports: Reports, stopped: str, fleet: str, sink: Sink) -> None:
    """Emit a note about the queued job that starts because another one was stopped."""
    active = active_jobs(reports)
    following = [job for job in queued_jobs(reports) if job != stopped]
    if following and active[:1] == [stopped]:
        command = Step("stop", following[0]).text(fleet)
        sink.emit(Note(f"job {following[0]} was queued and starts now; `{command}` stops it", Level.WARNING))


def queued(job: str, why: str = "") -> JobNotFinished:
    """Return the error that ends a command while a job is queued."""
    return JobNotFinished(
        f"{why}job {job} stays queued on the hosts", next_steps=[Step("logs", "-f", "--job", job), Step("stop", job)]
    )


def queued_event(started: JobStarted, after: str, *, attached: bool = False) -> JobQueued:
    """Return the event of a job that waits for another one.

    Args:
        started: The event of its start.
        after: The other job.
        attached: Whether it was queued before.
    """
    return JobQueued(
        job=started.job,
        script=started.script,
        after=after,
        members=started.members,
        queued_at=started.started_at,
        name=started.name,
        attached=attached,
    )
