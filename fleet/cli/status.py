"""The command `fleet status`: its options, and the request that they make."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption
from fleet.cli.runtime import discard_output, make_ports, resolve_fleet
from fleet.config import NAME_VARIABLE


def status(
    fleet: Annotated[
        str,
        typer.Option(
            "--fleet", envvar=NAME_VARIABLE, metavar="NAME", help="Show only this fleet.", show_default=False
        ),
    ] = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show fleets, hosts, and running jobs."""
    from fleet.commands import status as verb

    request = verb.StatusRequest(fleet=resolve_fleet(fleet) if fleet else "")
    summary = verb.run(request, make_ports())
    from fleet.console.tables import print_status

    try:
        print_status(summary.fleets, sys.stdout, json=output is Output.JSON)
    except BrokenPipeError:
        raise typer.Exit(discard_output()) from None
    if summary.damaged:
        raise summary.damaged[0]
