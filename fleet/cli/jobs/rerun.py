"""The command `fleet rerun`."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.again import find_remembered, run_again
from fleet.cli.application import WithJobs, command
from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, one_job, option
from fleet.cli.runtime import resolve_fleet


@command("Jobs", WithJobs)
def rerun(
    job: JobArgument = "",
    name: Annotated[str, option("--name", "Name of the new job.", "NAME", default="none")] = "",
    detach: Annotated[bool, option("--detach", "Return as soon as the job is running.", short="-d")] = False,
    dry_run: Annotated[
        bool, option("--dry-run", "Show the TF_CONFIG and the command of each task; start nothing.")
    ] = False,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Run a job again with the current files of its directory.

    Repeats the fleet train that started the job, in the same directory, with the same options and arguments. Secrets
    are not stored: their variables must be set.

    Examples:
      fleet rerun
      fleet rerun baseline --name baseline-2
    """
    fleet = resolve_fleet(fleet)
    _, command = find_remembered(one_job(job, same_job), fleet)
    options = ["--output", output.value, *(["--name", name] if name else [])]
    options += [flag for flag, is_set in (("--detach", detach), ("--dry-run", dry_run)) if is_set]
    run_again(command, fleet, options)
