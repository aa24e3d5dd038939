"""The command `fleet demo`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption, parse_count
from fleet.cli.runtime import make_ports, run_command


def demo(
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", parser=parse_count, help="Number of workers.")
    ] = 2,
    output: OutputOption = Output.AUTO,
) -> None:
    """Run a complete example on this computer.

    Starts two workers, trains a small model on them, pulls its results, and deletes the workers.
    """
    from fleet.commands import demo as verb

    run_command(
        verb.FLEET, output, lambda sink: verb.run(verb.DemoRequest(workers=workers), make_ports(sink, yes=True), sink)
    )
