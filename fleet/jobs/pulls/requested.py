"""Pulls that `fleet train --pull` requested, done when the job has ended by the command that finds it ended.

The request is recorded in the fleet's files before the job starts, and forgotten when the results were copied.
"""

from __future__ import annotations

from fleet.errors import CancelledError, FleetError
from fleet.events import Level, Note, ResultsPulled, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.pulls.pull import PullRequest, interrupted, pull_results
from fleet.jobs.results import StoredJobs, survey_agents
from fleet.services import Services
from fleet.state import FleetDirectory


def requested_pulls(directory: FleetDirectory) -> list[str]:
    """Return the jobs with a requested pull, the oldest first."""
    return [job for job in reversed(directory.recorded_jobs()) if directory.on_this_computer(job).pull_to]


def pull_requested(fleet: str, job: str, services: Services, sink: Sink) -> ResultsPulled:
    """Copy the results of an ended job to the directory that was requested when it started.

    Raises:
        FleetError: as for `pull_results`; the request is kept.
        CancelledError: Ctrl-C; a repeat continues.
    """
    request = PullRequest(fleet, job)
    try:
        return pull_results(request, services, sink)
    except KeyboardInterrupt:
        raise interrupted(request, job) from None


def pull_ended(fleet: str, services: Services, sink: Sink) -> None:
    """Do the requested pulls of jobs that have ended; report a failed one as a warning, and keep its request.

    Raises:
        CancelledError: Ctrl-C; a repeat continues.
    """
    directory = services.store.fleet(fleet)
    requested = requested_pulls(directory)
    if not requested:
        return
    try:
        ended = _find_ended(requested, fleet, services, sink)
    except FleetError as error:
        sink.emit(Note(f"the results of {', '.join(requested)} were not pulled: {error.message}", Level.WARNING))
        return
    for job in ended:
        try:
            pull_requested(fleet, job.job, services, sink)
        except CancelledError:
            raise
        except FleetError as error:
            sink.emit(warning_of(job.job, fleet, error))


def warning_of(job: str, fleet: str, error: FleetError) -> Note:
    """Return the warning about a requested pull that failed."""
    command = PullRequest(fleet, job).step(job).text(fleet)
    cause = f" ({error.cause})" if error.cause else ""
    return Note(
        f"the results of job {job} were not pulled: {error.message}{cause}; repeat `{command}`", Level.WARNING
    )


def _find_ended(requested: list[str], fleet: str, services: Services, sink: Sink) -> list[StoredJobs]:
    """Return those of the requested jobs that have ended; forget the request for a job that no host stores."""
    directory, record = services.store.need(fleet)
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_agents(clients, directory, requested, unreached)
    jobs = {job.job: job for job in stored.jobs}
    for job in requested:
        if job not in jobs and not stored.silent:
            directory.forget_pull(job)
    return [jobs[job] for job in requested if job in jobs and not jobs[job].is_running]
