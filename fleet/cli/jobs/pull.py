"""`fleet pull`: copy the results of a job to this computer."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.application import WithJobs, command
from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, Worker, one_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.events import ResultsPulled, Sink
from fleet.jobs.pull import PullRequest, pull_all, pull_results
from fleet.services import Services

__all__ = ["PullRequest", "run"]


def run(request: PullRequest, services: Services, sink: Sink) -> list[ResultsPulled]:
    """Copy results to this computer, as `pull_all` or `pull_results` does."""
    return pull_all(request, services, sink) if request.every else [pull_results(request, services, sink)]


@command("Results", WithJobs)
def pull(
    job: JobArgument = "",
    to: Annotated[str, option("--to", "Directory for the results.", "DIR", default="results/JOB")] = "",
    kinds: Annotated[
        str,
        option(
            "--what",
            "Kinds of results between commas: model, checkpoints, tensorboard, files, logs.",
            "KINDS",
            default="all",
        ),
    ] = "",
    worker: Worker = "all",
    every: Annotated[
        bool, option("--all", "Copy the results of all ended jobs that are not on this computer, each to DIR/JOB.")
    ] = False,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Copy the results of a job to this computer.

    Copies model, checkpoints, logs, and the files that the job wrote or changed. Verifies their SHA-256, and skips
    what is already there. An interrupted pull continues when it is repeated.

    Examples:
      fleet pull
      fleet pull --all
      fleet pull --what model,logs
    """
    request = PullRequest(
        fleet=resolve_fleet(fleet), job=one_job(job, same_job), directory=to, worker=worker, kinds=kinds, every=every
    )
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink))
