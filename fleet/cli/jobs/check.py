"""The command `fleet check`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fleet.cli.options import Output, OutputOption, duration, option
from fleet.cli.program import LOCAL_FIRST, SMOKE_TEST_S, add_program_options, read_program_fields
from fleet.cli.runtime import make_services, resolve_fleet, run_command


@add_program_options
def check(
    ctx: typer.Context,
    local_first: Annotated[
        float,
        duration(
            LOCAL_FIRST,
            "Run SCRIPT on each host separately, up to its first step or TIME.",
            "[TIME]",
            default=str(SMOKE_TEST_S),
        ),
    ] = 0.0,
    scaling: Annotated[
        bool,
        option("--scaling", "Measure steps of SCRIPT and the network; predict the speedup on more workers."),
    ] = False,
    bandwidth: Annotated[
        float | None,
        option("--bandwidth", "Network bandwidth to assume for --scaling.", "GBIT/S", default="measured"),
    ] = None,
    output: OutputOption = Output.AUTO,
    **program: Any,
) -> None:
    """Check that the hosts can run SCRIPT.

    Shows versions, GPUs, and disks of all hosts, whether they match, and which imports are missing. Runs SCRIPT only
    with --local-first or --scaling. Exit code 14 if a host is not ready.

    Examples:
      fleet check
      fleet check task.py --local-first
      fleet check task.py --scaling
    """
    from fleet.commands.jobs import check as verb

    def request() -> verb.CheckRequest:
        fields = read_program_fields(ctx, **program)
        return verb.CheckRequest(**fields, local_first_s=local_first, scaling=scaling, bandwidth_gbit_s=bandwidth)

    fleet = resolve_fleet(program["fleet"])
    run_command(fleet, output, lambda sink: verb.run(request(), make_services(sink), sink), live=False)
