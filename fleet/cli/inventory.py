"""The command `fleet inventory`: its options, and the request that they make."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from fleet.cli.options import Fleet
from fleet.cli.runtime import discard_output, make_ports, resolve_fleet


def inventory(
    form: Annotated[
        Literal["ansible", "ssh-config", "json"], typer.Option("--format", help="Output format.")
    ] = "ansible",
    fleet: Fleet = "",
) -> None:
    """Export the hosts of a fleet for other programs."""
    from fleet.commands import inventory as verb

    text = verb.run(verb.InventoryRequest(fleet=resolve_fleet(fleet), form=form), make_ports())
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(discard_output()) from None
