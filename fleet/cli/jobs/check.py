"""The command `fleet check`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Fleet, Output, OutputOption, parse_duration
from fleet.cli.program import (
    LOCAL_FIRST,
    SMOKE_TEST_S,
    Arguments,
    Data,
    Module,
    NoAdapt,
    NoRequirements,
    RequirementsFile,
    Script,
    Secrets,
    VariableFiles,
    Variables,
    Workdir,
    program_fields,
)
from fleet.cli.runtime import make_ports, resolve_fleet, run_command


def check(
    ctx: typer.Context,
    script: Script = "",
    arguments: Arguments = None,
    module: Module = "",
    local_first: Annotated[
        float,
        typer.Option(
            LOCAL_FIRST,
            metavar="[TIME]",
            parser=parse_duration,
            show_default=False,
            help=f"Run SCRIPT on each host separately, up to its first step or TIME.  [default: {SMOKE_TEST_S}]",
        ),
    ] = 0.0,
    workdir: Workdir = "",
    data: Data = None,
    requirements: RequirementsFile = None,
    no_requirements: NoRequirements = False,
    no_adapt: NoAdapt = False,
    env: Variables = None,
    env_file: VariableFiles = None,
    secret: Secrets = None,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Check that the hosts can run SCRIPT.

    Shows versions, GPUs, and disks of all hosts, whether they match, and which imports are missing. Runs SCRIPT only
    with --local-first. Exit code 14 if a host is not ready.
    """
    from fleet.commands.jobs import check as verb

    def request() -> verb.CheckRequest:
        return verb.CheckRequest(**program_fields(ctx), local_first_s=local_first)

    run_command(resolve_fleet(fleet), output, lambda sink: verb.run(request(), make_ports(sink), sink), live=False)
