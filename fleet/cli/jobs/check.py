"""The command `fleet check`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fleet.cli.options import Output, OutputOption, duration
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
    output: OutputOption = Output.AUTO,
    **program: Any,
) -> None:
    """Check that the hosts can run SCRIPT.

    Shows versions, GPUs, and disks of all hosts, whether they match, and which imports are missing. Runs SCRIPT only
    with --local-first. Exit code 14 if a host is not ready.

    Examples:
      fleet check
      fleet check task.py --local-first
    """
    from fleet.commands.jobs import check as verb

    def request() -> verb.CheckRequest:
        return verb.CheckRequest(**read_program_fields(ctx, **program), local_first_s=local_first)

    fleet = resolve_fleet(program["fleet"])
    run_command(fleet, output, lambda sink: verb.run(request(), make_services(sink), sink), live=False)
