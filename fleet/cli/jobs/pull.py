"""The command `fleet pull`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, Worker, one_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


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
    from fleet.commands.jobs import pull as verb

    request = verb.PullRequest(
        fleet=resolve_fleet(fleet), job=one_job(job, same_job), directory=to, worker=worker, kinds=kinds, every=every
    )
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink))
