"""`fleet pull`: copy the results of a job to this computer."""

from __future__ import annotations

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, JOB, OUTPUT, SAME_JOB, WORKER, Output, one_job, option
from fleet.cli.runtime import resolve_fleet, session
from fleet.jobs.pull import PullRequest, pull_all, pull_results


@command("Results", WithJobs)
def pull(
    job: str = JOB,
    to: str = option("", "--to", "Directory for the results.", "DIR", shown="results/JOB"),
    kinds: str = option(
        "",
        "--what",
        "Kinds of results between commas: model, checkpoints, tensorboard, files, logs.",
        "KINDS",
        shown="all",
    ),
    worker: str = WORKER,
    every: bool = option(
        False, "--all", "Copy the results of all ended jobs that are not on this computer, each to DIR/JOB."
    ),
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Copy the results of a job to this computer.

    Copies model, checkpoints, logs, and the files that the job wrote or changed. Verifies their SHA-256, and skips
    what is already there. An interrupted pull continues when it is repeated.

    Examples:
      fleet pull
      fleet pull --all
      fleet pull --what model,logs
    """
    with session(resolve_fleet(fleet), output) as run:
        request = PullRequest(one_job(job, same_job), to, worker, kinds)
        (pull_all if every else pull_results)(run.find_fleet(), request)
