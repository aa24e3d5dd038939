"""The command `fleet logs`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, JobOption, Output, OutputOption, Worker, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def logs(
    follow: Annotated[bool, option("--follow", "Follow until the job ends.", short="-f")] = False,
    lines: Annotated[int | None, option("--lines", "Show only the last N lines.", "N", short="-n", min=0)] = None,
    worker: Worker = "all",
    job: JobOption = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the logs of a job.

    Shows each byte that the workers wrote. The output of a single worker is not prefixed. Exits with the exit code of
    the job.

    Examples:
      fleet logs --follow
      fleet logs --lines 20 --worker 1
    """
    from fleet.commands.jobs import logs as verb

    request = verb.LogsRequest(fleet=resolve_fleet(fleet), follow=follow, lines=lines, worker=worker, job=job)
    run_command(
        request.fleet,
        output,
        lambda sink: verb.run(request, make_services(sink), sink),
        prefix=worker == "all",
        live=follow,
    )
