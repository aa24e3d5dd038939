"""`fleet jobs` lists the jobs that hosts store, and deletes ended ones; `fleet compare` compares two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fleet.cli.application import WithJobs, command
from fleet.cli.options import JOB_HELP, Fleet, Output, OutputOption, SameJob, Yes, argument, complete_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import CancelledError, NotReadyError, UsageError, explain_interrupt
from fleet.events import JobsCompared, JobsDeleted, JobsListed, Note, ResultsAtRisk, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import call_each, open_some
from fleet.jobs.pull import pull_ended
from fleet.jobs.results import StoredJobs, Survey, survey_agents
from fleet.jobs.selection import is_id
from fleet.remote.fanout import errors_by_host, values_of
from fleet.remote.results import prune_jobs
from fleet.services import Services
from fleet.steps import Again, Step
from provision.quantities import counted
from train.agent.protocol.records import JobsPruned


@dataclass(frozen=True)
class JobsRequest:
    """Request of the command.

    Attributes:
        fleet: Name of the fleet.
        jobs: Only these, each as in `select_job`; empty: all, or with `prune` those whose deletion loses no results.
        prune: Delete them on the hosts.
    """

    fleet: str
    jobs: tuple[str, ...] = ()
    prune: bool = False


def run(request: JobsRequest, services: Services, sink: Sink) -> JobsListed | JobsDeleted:
    """List jobs, or delete them after a question.

    Raises:
        NotFoundError: the fleet or job does not exist.
        NotReadyError: a job to delete is running.
        UsageError: there is something to delete, and confirmation requires a terminal.
        CancelledError: the user declined, or interrupted.
        UnreachableError: no host answers.
    """
    directory, record = services.store.need(request.fleet)
    pull_ended(request.fleet, services, sink)
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_agents(clients, directory, unreached=unreached)
        chosen = _select_jobs(request, stored)
        if not request.prune:
            listed = JobsListed(
                fleet=request.fleet,
                jobs=tuple(job.summary() for job in chosen),
                disks=stored.disks,
                silent=tuple(stored.silent),
            )
            sink.emit(listed)
            return listed
        to_delete = _select_for_deletion(request, chosen, sink)
        if not to_delete:
            return JobsDeleted(request.fleet, (), 0)
        sink.emit(ResultsAtRisk(request.fleet, tuple(job.summary() for job in to_delete), pruned=True))
        _confirm(request, to_delete, services)
        names = [job.job for job in to_delete]
        with explain_interrupt("interrupted; some of these jobs may be deleted", Again({}), Step("jobs")):
            outcomes = call_each(clients, lambda client: prune_jobs(client, names))
    deleted = _summarize_deletion(request.fleet, names, values_of(outcomes))
    for name in deleted.jobs:
        directory.forget_command(name)
    sink.emit(deleted)
    for error in (*errors_by_host(outcomes).values(), *stored.silent.values()):
        message = f"not all hosts answered: {error.message}"
        raise type(error)(message, cause=error.cause, next_steps=[Step("jobs")])
    return deleted


def _select_jobs(request: JobsRequest, stored: Survey) -> Sequence[StoredJobs]:
    chosen = {stored.select(reference, request.fleet).job for reference in request.jobs}
    return [job for job in stored.jobs if not chosen or job.job in chosen]


def _select_for_deletion(request: JobsRequest, chosen: Sequence[StoredJobs], sink: Sink) -> list[StoredJobs]:
    """Return the jobs to delete: the given ones, or all that have nothing left to pull."""
    running = [job for job in chosen if job.is_running]
    if request.jobs:
        if running:
            raise NotReadyError(
                f"job {running[0].job} is {running[0].state} and cannot be deleted",
                next_steps=[Step("stop", running[0].job)],
            )
        return list(chosen)
    safe = [job for job in chosen if job.is_safe]
    left = [job for job in chosen if not job.is_safe and not job.is_running]
    if left:
        count = counted(len(left), "job")
        step = Step("jobs", "--prune", *(job.job for job in left)).text(request.fleet)
        kept = "is" if len(left) == 1 else "are"
        sink.emit(Note(f"{count} with results that are not on this computer {kept} kept; `{step}` deletes them, too"))
    if not safe:
        sink.emit(Note("no job was deleted"))
    return safe


def _confirm(request: JobsRequest, jobs: Sequence[StoredJobs], services: Services) -> None:
    count = counted(len(jobs), "job")
    if not services.attended:
        raise UsageError(
            f"{count} would be deleted, and confirmation requires a terminal",
            next_steps=[Step("jobs", "--prune", "--yes", *request.jobs)],
        )
    if not services.consent(f"Delete {count} on the hosts?"):
        raise CancelledError("nothing was deleted", next_steps=[Step("jobs")])


def _summarize_deletion(fleet: str, names: Sequence[str], answers: Sequence[JobsPruned]) -> JobsDeleted:
    kept = {str(job): str(why) for answer in answers for job, why in answer.kept.items() if job in names}
    gone = tuple(name for name in names if name not in kept and any(name in answer.jobs for answer in answers))
    return JobsDeleted(fleet, gone, sum(answer.freed for answer in answers), kept)


@command("Results", WithJobs)
def jobs(
    jobs: Annotated[
        list[str] | None,
        argument("[JOB]...", "Only these jobs, named as for fleet pull.", autocompletion=complete_job),
    ] = None,
    prune: Annotated[
        bool,
        option("--prune", "Delete ended jobs on the hosts: those named, else those with nothing left to pull."),
    ] = False,
    yes: Yes = False,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """List the jobs that the hosts store, or delete them.

    Examples:
      fleet jobs
      fleet jobs --prune -1
    """
    request = JobsRequest(fleet=resolve_fleet(fleet), jobs=(*(jobs or ()), *filter(None, [same_job])), prune=prune)
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink, yes=yes), sink), live=False)


def compare_jobs(fleet: str, references: Sequence[str], services: Services, sink: Sink) -> JobsCompared:
    """Compare two jobs, each named as in `select_job`.

    Raises:
        NotFoundError: the fleet or job does not exist.
        UsageError: several jobs are meant, or both are the same.
        UnreachableError: no host answers.
    """
    directory, record = services.store.need(fleet)
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_agents(clients, directory, references if all(map(is_id, references)) else (), unreached)
    first, second = (stored.select(reference, fleet) for reference in references)
    if first.job == second.job:
        raise UsageError(f"both are job {first.job}", next_steps=[Step("jobs")])
    compared = JobsCompared(fleet, first.summary(), second.summary())
    sink.emit(compared)
    return compared


@command("Results", WithJobs)
def compare(
    first: Annotated[str, argument("JOB", JOB_HELP)],
    second: Annotated[str, argument("JOB", "The other job.")],
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Compare two jobs: arguments, code, versions, metrics.

    Marks lines that differ with an asterisk.

    Examples:
      fleet compare -2 -1
      fleet compare baseline wide -o json
    """
    name = resolve_fleet(fleet)
    run_command(name, output, lambda sink: compare_jobs(name, (first, second), make_services(sink), sink), live=False)
