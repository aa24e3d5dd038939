"""The command `fleet jobs`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.completion import complete_job
from fleet.cli.options import Fleet, Output, OutputOption, SameJob, Yes, argument, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


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
    from fleet.commands.jobs import jobs as verb

    request = verb.JobsRequest(
        fleet=resolve_fleet(fleet), jobs=(*(jobs or ()), *filter(None, [same_job])), prune=prune
    )
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink), live=False)
