"""The command `fleet logs`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Fleet, Output, OutputOption, Worker
from fleet.cli.runtime import make_ports, resolve_fleet, run_command


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Show only the last N lines.")
    ] = None,
    worker: Worker = "all",
    job: Annotated[str, typer.Option("--job", metavar="ID", help="Job ID.  [default: the latest job]")] = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the logs of a job.

    Shows each byte that the workers wrote. The output of a single worker is not prefixed. Exits with the exit code of
    the job.
    """
    from fleet.commands.jobs import logs as verb

    request = verb.LogsRequest(fleet=resolve_fleet(fleet), follow=follow, lines=lines, worker=worker, job=job)
    run_command(
        request.fleet,
        output,
        lambda sink: verb.run(request, make_ports(sink), sink),
        prefix=worker == "all",
        live=follow,
    )
