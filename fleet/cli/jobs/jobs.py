"""`fleet jobs` lists the jobs that hosts store, and deletes ended ones; `fleet compare` compares two."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, JOB_HELP, OUTPUT, SAME_JOB, YES, Output, argument, complete_job, option
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import CancelledError, NotReadyError, UsageError, explain_interrupt
from fleet.events import JobsCompared, JobsDeleted, JobsListed, Note, ResultsAtRisk, Sink
from fleet.fleets.agents import call_each
from fleet.jobs.pull import pull_ended
from fleet.jobs.results import StoredJobs, survey_agents
from fleet.jobs.selection import is_id
from fleet.remote.fanout import errors_by_host, values_of
from fleet.remote.results import prune_jobs
from fleet.steps import Again, Step
from provision.quantities import counted


def _select_for_deletion(chosen: Sequence[StoredJobs], fleet: str, sink: Sink, *, named: bool) -> list[StoredJobs]:
    """Return the jobs to delete: those that the user named, or of all jobs those that have nothing left to pull."""
    running = [job for job in chosen if job.is_running]
    if named:
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
        step = Step("jobs", "--prune", *(job.job for job in left)).text(fleet)
        kept = "is" if len(left) == 1 else "are"
        sink.emit(Note(f"{count} with results that are not on this computer {kept} kept; `{step}` deletes them, too"))
    if not safe:
        sink.emit(Note("no job was deleted"))
    return safe


@command("Results", WithJobs)
def jobs(
    jobs: list[str] | None = argument(
        None, "[JOB]...", "Only these jobs, named as for fleet pull.", autocompletion=complete_job
    ),
    prune: bool = option(
        False, "--prune", "Delete ended jobs on the hosts: those named, else those with nothing left to pull."
    ),
    yes: bool = YES,
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """List the jobs that the hosts store, or delete them.

    Examples:
      fleet jobs
      fleet jobs --prune -1
    """
    references = (*(jobs or ()), *filter(None, [same_job]))
    with session(resolve_fleet(fleet), output, yes=yes, live=False) as run:
        existing = run.find_fleet()
        pull_ended(existing)
        with existing.open_some() as (clients, unreached):
            stored = survey_agents(clients, existing.directory, unreached=unreached)
            named = {stored.select(reference, run.fleet).job for reference in references}
            chosen = [job for job in stored.jobs if not named or job.job in named]
            if not prune:
                listed = tuple(job.summary() for job in chosen)
                run.emit(JobsListed(run.fleet, listed, stored.disks, tuple(stored.silent)))
                return
            to_delete = _select_for_deletion(chosen, run.fleet, run, named=bool(named))
            if not to_delete:
                return
            run.emit(ResultsAtRisk(run.fleet, tuple(job.summary() for job in to_delete), pruned=True))
            count, agree = counted(len(to_delete), "job"), Step("jobs", "--prune", "--yes", *references)
            declined = CancelledError("nothing was deleted", next_steps=[Step("jobs")])
            loss, question = f"{count} would be deleted", f"Delete {count} on the hosts?"
            run.services.require_consent(loss, question, declined, [agree])
            names = [job.job for job in to_delete]
            with explain_interrupt("interrupted; some of these jobs may be deleted", Again({}), Step("jobs")):
                outcomes = call_each(clients, lambda client: prune_jobs(client, names))
        answers = values_of(outcomes)
        kept = {str(job): str(why) for answer in answers for job, why in answer.kept.items() if job in names}
        gone = [name for name in names if name not in kept and any(name in answer.jobs for answer in answers)]
        for name in gone:
            existing.directory.forget_command(name)
        run.emit(JobsDeleted(run.fleet, tuple(gone), sum(answer.freed for answer in answers), kept))
        for error in (*errors_by_host(outcomes).values(), *stored.silent.values()):
            message = f"not all hosts answered: {error.message}"
            raise type(error)(message, cause=error.cause, next_steps=[Step("jobs")])


@command("Results", WithJobs)
def compare(
    first: str = argument(..., "JOB", JOB_HELP),
    second: str = argument(..., "JOB", "The other job."),
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Compare two jobs: arguments, code, versions, metrics.

    Marks lines that differ with an asterisk.

    Examples:
      fleet compare -2 -1
      fleet compare baseline wide -o json
    """
    references = (first, second)
    with session(resolve_fleet(fleet), output, live=False) as run:
        existing = run.find_fleet()
        with existing.open_some() as (clients, unreached):
            few = references if all(map(is_id, references)) else ()
            stored = survey_agents(clients, existing.directory, few, unreached)
        earlier, other = (stored.select(reference, run.fleet) for reference in references)
        if earlier.job == other.job:
            raise UsageError(f"both are job {earlier.job}", next_steps=[Step("jobs")])
        run.emit(JobsCompared(run.fleet, earlier.summary(), other.summary()))
