"""The place of a new job in the queue of a fleet, whose hosts run one job at a time, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.jobs.selection import is_newest, reported_jobs, select_job
from train.agent.protocol.records import JobReport

Reports = Sequence[tuple[str, JobReport]]


@dataclass(frozen=True)
class Place:
    """The place of a new job in the queue.

    Attributes:
        after: The job before it; empty: the job starts at once.
        note: What the user may not expect; empty: nothing.
    """

    after: str
    note: str = ""


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


def choose_place(reference: str, reports: Reports, fleet: str) -> Place:
    """Return the place of a new job that is to run after another one.

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
            return Place(active[-1])
        if not reports:
            return Place("", "the fleet has no earlier job; the job starts now")
    named = select_job(reference, reported_jobs(reports), fleet)
    if not active:
        return Place("", f"job {named} has already ended; the job starts now")
    if named not in active:
        return Place(active[-1], f"job {named} has already ended")
    return Place(active[-1], f"other jobs are queued after job {named} already" if named != active[-1] else "")
