"""The command `fleet demo`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Output, OutputOption, Raw, option, parse_count
from fleet.cli.runtime import make_services, run_command


def demo(
    workers: Annotated[int, option("--workers", "Number of workers.", "N", short="-w", parser=parse_count)] = 2,
    raw: Raw = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Run a complete example on this computer.

    Starts two workers, trains a small model on them, pulls its results, and deletes the workers.

    Examples:
      fleet demo
      fleet demo --workers 4
    """
    from fleet.commands import demo as verb

    run_command(
        verb.FLEET,
        output,
        lambda sink: verb.run(verb.DemoRequest(workers=workers), make_services(sink, yes=True), sink),
        raw=raw,
    )
