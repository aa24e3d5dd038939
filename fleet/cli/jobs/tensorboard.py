"""The command `fleet tensorboard`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, one_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def tensorboard(
    job: JobArgument = "",
    directory: Annotated[
        str, option("--dir", "Show the results that fleet pull copied to this directory.", "DIR")
    ] = "",
    port: Annotated[
        int | None,
        option("--port", "Port on this computer.", "N", default="first free one from 6006", min=1, max=65535),
    ] = None,
    open_browser: Annotated[bool, option("--open/--no-open", "Open a browser.")] = True,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the curves of a job in TensorBoard.

    Shows the event files that the script wrote, and the telemetry of the hosts, of all workers and attempts. Copies
    what is new while the job runs. Ctrl-C ends it.

    Examples:
      fleet tensorboard
      fleet tensorboard -1 --port 7000 --no-open
      fleet tensorboard --dir results/baseline
    """
    from fleet.commands.jobs import tensorboard as verb

    request = verb.TensorBoardRequest(resolve_fleet(fleet), one_job(job, same_job), directory, port, open_browser)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink), live=False)
