"""The command `fleet jobs`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Fleet, Output, OutputOption, Yes
from fleet.cli.runtime import make_ports, resolve_fleet, run_command


def jobs(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these jobs.", show_default=False)
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete ended jobs on the hosts: those named, else those with nothing left to pull."
        ),
    ] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """List the jobs that the hosts store, or delete them."""
    from fleet.commands.jobs import jobs as verb

    request = verb.JobsRequest(fleet=resolve_fleet(fleet), jobs=tuple(jobs or ()), prune=prune)
    run_command(
        request.fleet,
        Output.LINES if output is Output.AUTO else output,
        lambda sink: verb.run(request, make_ports(sink, yes=yes), sink),
    )
