"""The command `fleet gc`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption, Yes
from fleet.cli.runtime import make_ports, read_settings, run_command
from fleet.config import DEFAULT_FLEET


def gc(
    everybody: Annotated[bool, typer.Option("--all", help="Include resources created by other users.")] = False,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="ID",
            help="Limit the search to this project.  [default: local fleets and all known projects]",
        ),
    ] = None,
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Find and delete orphaned resources.

    Asks first; by default only resources that were created from this computer. Fleets of another state directory
    count as orphaned.
    """
    from fleet.commands.fleets import gc as verb
    from fleet.settings import Settings

    request = verb.GcRequest(
        settings=Settings(project=project).over(read_settings()), only=project is not None, everybody=everybody
    )
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, make_ports(sink, yes=yes), sink))
