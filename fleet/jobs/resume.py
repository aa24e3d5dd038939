"""Continue a job from the checkpoint of an earlier one, and repeat the command that started it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import NotFoundError, NotReadyError, fold
from fleet.events import Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.results import StoredJobs, survey_agents, survey_job
from fleet.jobs.selection import NamedJob, select_job
from fleet.remote.client import AgentClient
from fleet.remote.quoting import one_line
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, TrainCommand
from fleet.steps import Again, Step
from train.agent.protocol.records import Resumption


@dataclass(frozen=True)
class Origin:
    """The checkpoint from which a job continues.

    Attributes:
        resumption: The checkpoint, for the hosts.
        name: Name of the checkpoint for users.
    """

    resumption: Resumption
    name: str


def find_origin(
    reference: str, record: FleetRecord, directory: FleetDirectory, services: Services, sink: Sink
) -> Origin:
    """Return the newest complete checkpoint of a job, according to the hosts that answer.

    Raises:
        NotFoundError: the job does not exist, or it has no complete checkpoint.
        UsageError: several jobs are meant.
        NotReadyError: the job is running.
        UnreachableError: no host answers.
    """
    fleet = record.spec.name
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_job(reference, clients, directory, unreached)
        job = stored.select(reference, fleet)
    if job.is_running:
        raise NotReadyError(f"job {job.job} is running", next_steps=[Step("logs", "-f"), Step("stop")])
    checkpoint = job.checkpoint
    if checkpoint is None:
        raise NotFoundError(
            f"job {job.job} has no complete checkpoint",
            cause=f"{fold(stored.silent)} did not answer" if stored.silent else "",
            next_steps=[Again({"--resume": None}), Step("jobs")],
        )
    return Origin(Resumption(job.job, checkpoint.attempt, checkpoint.number), one_line(checkpoint.name, 100))


def is_resumable(job: StoredJobs | None, directory: FleetDirectory) -> bool:
    """Return whether ``train --resume JOB`` can continue a job with the command that started it."""
    return job is not None and job.checkpoint is not None and job.job in directory.commands()


def resume_step(job: str, clients: Sequence[AgentClient], directory: FleetDirectory) -> Step | None:
    """Return the command that continues a job; None if it has no checkpoint, or if its command is unknown."""
    stored = survey_agents(clients, directory, [job]).find(job)
    return Step("train", "--resume", job) if is_resumable(stored, directory) else None


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
