"""IDs of jobs, and which job an ID, the start of an ID, a name, or a number such as -1 refers to; without I/O."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from fleet.errors import FleetError, NotFoundError, UsageError
from fleet.remote.client import JOB_NAME
from fleet.steps import Again, Step
from provision.quantities import counted
from train.agent.protocol.records import JobReport

NEWEST = "-1"
"""Reference to the newest job; an empty reference means the same."""

_BACK = re.compile(r"-([1-9][0-9]{0,5})")
_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z0-9]{4}")
_CLOSE_NAME, _CLOSE_ID = 0.5, 0.6  # of difflib
_LISTED = 5  # IDs in an error


def job_id(now: float) -> str:
    """Return a job name that sorts by time: ``20261121-094500-k3f9``; the first letter is the 32nd of the second."""
    letters = "23456789abcdefghijkmnpqrstuvwxyz"
    import secrets

    suffix = letters[int(now % 1 * 32)] + "".join(secrets.choice(letters) for _ in range(3))
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{suffix}"


class NamedJob(NamedTuple):
    """A job that hosts of a fleet store.

    Attributes:
        job: Its identifier.
        name: The name that the user gave it; empty: none.
        is_common: At least half of the hosts that store jobs store it; others do not count for -1, -2, and so on.
    """

    job: str
    name: str = ""
    is_common: bool = True


def name_jobs(entries: Iterable[tuple[str, str, str]]) -> tuple[NamedJob, ...]:
    """Return each job once, in the order in which the jobs appear first.

    Args:
        entries: Host, job, and name of the job, of each job that a host reports.
    """
    hosts: dict[str, set[str]] = {}
    names: dict[str, Counter[str]] = {}
    for host, job, name in entries:
        hosts.setdefault(job, set()).add(host)
        names.setdefault(job, Counter())[name] += 1
    everywhere = len(set().union(*hosts.values()))
    return tuple(
        NamedJob(job, names[job].most_common(1)[0][0], 2 * len(storing) >= everywhere)
        for job, storing in hosts.items()
    )


def reported_jobs(reports: Iterable[tuple[str, JobReport]]) -> tuple[NamedJob, ...]:
    """Return the jobs that hosts report, newest first, then those that are queued.

    Args:
        reports: Host and report.
    """
    newest_first = sorted(reports, key=lambda entry: entry[1].job, reverse=True)
    ordered = sorted(newest_first, key=lambda entry: bool(entry[1].queued_after))
    return name_jobs((host, report.job, report.job_name) for host, report in ordered)


def select_reported(reference: str, fleet: str) -> Callable[[Sequence[tuple[str, JobReport]]], str] | None:
    """Return the function that selects a job among reports; None if the newest job is meant.

    Args:
        reference: As in `select_job`.
        fleet: Name of the fleet, for errors.
    """
    return None if is_newest(reference) else lambda reports: select_job(reference, reported_jobs(reports), fleet)


def is_newest(reference: str) -> bool:
    """Return whether a reference means the newest job."""
    return reference in ("", NEWEST)


def is_id(reference: str) -> bool:
    """Return whether a reference is a complete identifier."""
    return bool(_ID.fullmatch(reference))


def check_job_name(name: str) -> None:
    """Reject a name that `train --name` cannot give a job.

    Raises:
        UsageError: the name is invalid.
    """
    if name and not JOB_NAME.fullmatch(name):
        meant = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
        raise UsageError(
            f"{name!r} is not a name of a job",
            cause="a name consists of at most 40 lower-case letters, digits, and hyphens, and begins with a letter"
            " or digit",
            next_steps=[Again({"--name": meant})] if meant else (),
        )


def select_job(reference: str, jobs: Sequence[NamedJob], fleet: str) -> str:
    """Return the identifier of the job that a reference means.

    Args:
        reference: An identifier, the start of one, a name, or ``-1`` for the newest job, ``-2`` for the one before
            it, and so on; empty: the newest.
        jobs: The jobs that the hosts store, newest first.
        fleet: Name of the fleet, for errors.

    Raises:
        NotFoundError: the job does not exist; the error names the most similar one.
        UsageError: several jobs are meant; the error lists them.
    """
    if not jobs:
        raise NotFoundError(f"fleet {fleet!r} has no job yet", next_steps=[Step("status")])
    back = _BACK.fullmatch(reference or NEWEST)
    if back:
        return _select_by_age(int(back[1]), jobs, fleet)
    if any(job.job == reference for job in jobs):
        return reference
    named = [job.job for job in jobs if job.name == reference]
    if named:
        return _only(named, f"{counted(len(named), 'job')} have the name {reference!r}")
    begun = [job.job for job in jobs if job.job.startswith(reference)]
    if begun:
        return _only(begun, f"the IDs of {counted(len(begun), 'job')} begin with {reference!r}")
    raise _unknown(reference, jobs, fleet)


def _select_by_age(back: int, jobs: Sequence[NamedJob], fleet: str) -> str:
    counting = [job.job for job in jobs if job.is_common] or [job.job for job in jobs]
    if back <= len(counting):
        return counting[back - 1]
    message = f"fleet {fleet!r} has no job -{back}: it has {counted(len(counting), 'job')}"
    raise NotFoundError(message, next_steps=[Step("jobs")])


def _only(jobs: Sequence[str], message: str) -> str:
    if len(jobs) == 1:
        return jobs[0]
    more = f", and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else ""
    raise UsageError(
        message,
        cause=f"they are {', '.join(jobs[:_LISTED])}{more}",
        hint="give the ID of one of them, or -1 for the newest job",
        next_steps=[Step("jobs")],
    )


def _unknown(reference: str, jobs: Sequence[NamedJob], fleet: str) -> FleetError:
    close = get_close_matches(reference, {job.name for job in jobs if job.name}, n=1, cutoff=_CLOSE_NAME)
    close += get_close_matches(reference, [job.job for job in jobs], n=1, cutoff=_CLOSE_ID)
    ends = [job.job for job in jobs if job.job.endswith(f"-{reference}")]
    meant = next(iter([*ends, *close]), "")
    return NotFoundError(
        f"fleet {fleet!r} has no job {reference!r}",
        hint=f"did you mean {meant}?" if meant else "",
        next_steps=[Step("jobs")],
    )
