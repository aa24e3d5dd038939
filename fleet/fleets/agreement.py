"""Combine the reports of the hosts of a fleet about a job, without I/O.

A host can be broken, or controlled by an attacker: its report never replaces the reports of the other hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fleet.remote.quoting import one_line
from train.agent.protocol.records import JobReport, JobResult, Outcome

_ENDS = {Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed", Outcome.CANCELLED: "was stopped"}
_LONGEST_REASON = 200  # characters


class Agreement(NamedTuple):
    """The result of a job on which its hosts agree.

    Attributes:
        result: The result that counts; None if no host reports one.
        disputes: A sentence for each result of another host that contradicts it.
    """

    result: JobResult | None
    disputes: tuple[str, ...] = ()


def agree(results: Mapping[str, JobResult], *, size: int = 0, attempts: int = 0) -> Agreement:
    """Return the result of a job according to most of its hosts.

    A result that is not `isolated` means that its host was connected to more than half of the hosts when the job
    ended, and that all of these report the same. If half of the hosts report a different result, it counts as
    much as a result that is `isolated`. Among such results, one that other hosts report as well comes first, then one
    that is not a success, then the result of the latest attempt that the job can have had, then the earliest: the
    order in which hosts answer has no effect.

    Args:
        results: The result of each host that reports one.
        size: Number of hosts of the job; at least that of the results.
        attempts: Largest number of attempts; 0: no limit.
    """
    if not results:
        return Agreement(None)
    certain = {host: result for host, result in results.items() if result.outcome is not Outcome.LOST}
    counts = Counter(_end(result) for result in certain.values())
    hosts = max(size, len(results))

    def rank(result: JobResult) -> tuple[bool, bool, bool, int, bool, bool, int, float]:
        count = counts[_end(result)]
        return (
            result.outcome is not Outcome.LOST,
            not result.isolated and 2 * (len(certain) - count) < hosts,
            not attempts or result.attempt <= attempts,
            count,
            result.isolated or result.outcome is not Outcome.SUCCEEDED,
            not result.isolated,
            result.attempt,
            -result.at,
        )

    chosen = max(results.values(), key=rank)
    return Agreement(
        chosen, tuple(_dispute(host, result) for host, result in certain.items() if _differs(result, chosen))
    )


def _end(result: JobResult) -> tuple[Outcome, int]:
    return result.outcome, result.attempt


def _differs(result: JobResult, chosen: JobResult) -> bool:
    """Return whether a result contradicts the chosen one; an isolated host may report another attempt."""
    if result.isolated or chosen.isolated:
        return result.outcome is not chosen.outcome
    return _end(result) != _end(chosen)


def _dispute(host: str, result: JobResult) -> str:
    why = f": {one_line(result.reason, _LONGEST_REASON)}" if result.reason else ""
    end = f"{_ENDS.get(result.outcome, result.outcome.value)} in attempt {result.attempt}"
    return f"{host} reports a different result: the job {end}{why}"


def newest_job(jobs: Sequence[str], started: str = "") -> str:
    """Return the newest job that more than half of the hosts report.

    If there is none, return `started` if a host reports it, otherwise the newest job of all.

    Args:
        jobs: The newest job of each host that has one.
        started: The newest job that was started from this computer.
    """
    common = [job for job, count in Counter(jobs).items() if 2 * count > len(jobs)]
    return max(common or [job for job in jobs if job == started] or jobs, default="")


def newer_jobs(jobs: Mapping[str, str], newest: str) -> list[str]:
    """Return a sentence for each host that reports a newer job than the chosen newest one.

    Args:
        jobs: The newest job of each host.
        newest: The chosen newest job.
    """
    return [f"{host} reports a newer job, {one_line(job, 100)}" for host, job in jobs.items() if job > newest]


def description(reports: Sequence[JobReport]) -> JobReport:
    """Return a report that describes the job as most hosts do: its members, their first tasks, and its limits.

    Args:
        reports: Reports about one job, at least one.
    """

    def terms(report: JobReport) -> tuple[object, ...]:
        return tuple((member.slot, member.task) for member in report.members), report.attempts

    counts = Counter(map(terms, reports))
    return max(reports, key=lambda report: (counts[terms(report)], report.attempt))


def latest_attempt(reports: Sequence[JobReport], attempts: int) -> int:
    """Return the latest attempt that the hosts report, at least 1.

    Args:
        reports: Reports about one job.
        attempts: Largest number of attempts; 0: no limit.
    """
    return max([1, *(report.attempt for report in reports if not attempts or report.attempt <= attempts)])
