"""The command `fleet check`: its options, and the request that they make."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fleet.cli.options import (
    Arguments,
    Data,
    Fleet,
    Module,
    NoAdapt,
    NoRequirements,
    Output,
    OutputOption,
    RequirementsFile,
    Script,
    Secrets,
    VariableFiles,
    Variables,
    Workdir,
    parse_duration,
)
from fleet.cli.program import LOCAL_FIRST, find_words
from fleet.cli.runtime import make_ports, resolve_fleet, run_command


def check(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
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
            help="Run SCRIPT on each host separately, up to its first step or TIME.  [default: 60s]",
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
    from fleet.commands import check as verb
    from fleet.jobs.variables import environment, secrets, withheld

    name = resolve_fleet(fleet)

    def request() -> verb.CheckRequest:
        return verb.CheckRequest(
            fleet=name,
            **find_words(ctx, script, arguments, module)._asdict(),
            workdir=workdir,
            data=tuple(data or ()),
            requirements="" if no_requirements else requirements,
            adapt=not no_adapt,
            env=environment(env or (), env_file or (), os.environ),
            secrets=secrets(secret or (), os.environ),
            withheld=withheld(secret or (), env_file or ()),
            local_first_s=local_first,
        )

    run_command(name, output, lambda sink: verb.run(request(), make_ports(sink), sink), live=False)
