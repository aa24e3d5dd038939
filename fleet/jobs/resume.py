"""Continue a job from the checkpoint of an earlier one, and repeat the command that started it."""

from __future__ import annotations

from pathlib import Path

from fleet.errors import NotFoundError, NotReadyError, fold
from fleet.fleets.agents import ExistingFleet
from fleet.jobs.results import StoredJobs, survey_job
from fleet.jobs.selection import NamedJob, select_job
from fleet.remote.quoting import one_line
from fleet.state import FleetDirectory, TrainCommand
from fleet.steps import Again, Step
from train.agent.protocol.records import Resumption


def find_origin(reference: str, fleet: ExistingFleet) -> tuple[Resumption, str]:
    """Return the newest complete checkpoint of a job, according to the hosts that answer, and its name for users.

    Raises:
        NotFoundError: the job does not exist, or it has no complete checkpoint.
        UsageError: several jobs are meant.
        NotReadyError: the job is running.
        UnreachableError: no host answers.
    """
    with fleet.open_some() as (clients, unreached):
        stored = survey_job(reference, clients, fleet.directory, unreached)
    job = stored.select(reference, fleet.name)
    if job.is_running:
        raise NotReadyError(f"job {job.job} is running", next_steps=[Step("logs", "-f"), Step("stop")])
    checkpoint = job.checkpoint
    if checkpoint is None:
        raise NotFoundError(
            f"job {job.job} has no complete checkpoint",
            cause=f"{fold(stored.silent)} did not answer" if stored.silent else "",
            next_steps=[Again({"--resume": None}), Step("jobs")],
        )
    return Resumption(job.job, checkpoint.attempt, checkpoint.number), one_line(checkpoint.name, 100)


def is_resumable(job: StoredJobs | None, directory: FleetDirectory) -> bool:
    """Return whether ``train --resume JOB`` can continue a job with the command that started it."""
    return job is not None and job.checkpoint is not None and job.job in directory.commands()


def find_command(reference: str, directory: FleetDirectory, fleet: str) -> tuple[str, TrainCommand]:
    """Return a job that was started from this computer, and the command that started it.

    Raises:
        NotFoundError: the job does not exist, or the directory of its command does not exist.
        UsageError: several jobs are meant.
    """
    commands = directory.commands()
    if not commands:
        raise NotFoundError(f"no job of fleet {fleet!r} was started from this computer", next_steps=[Step("jobs")])
    try:
        job = select_job(reference, [NamedJob(job, command.name) for job, command in commands.items()], fleet)
    except NotFoundError as error:
        raise error.replaced(cause="only jobs that were started from this computer can be repeated") from None
    if not Path(commands[job].directory).is_dir():
        raise NotFoundError(
            f"the directory of job {job} does not exist", cause=commands[job].directory, next_steps=[Step("jobs")]
        )
    return job, commands[job]
