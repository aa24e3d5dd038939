"""The command `fleet status`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated, TextIO

from fleet.cli.options import Output, OutputOption, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet
from fleet.config import NAME_VARIABLE


def status(
    fleet: Annotated[str, option("--fleet", "Show only this fleet.", "NAME", envvar=NAME_VARIABLE)] = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show fleets, hosts, and running jobs.

    Examples:
      fleet status
      fleet status --fleet vision -o json
    """
    from fleet.commands.fleets import status as verb
    from fleet.console.status_table import print_status

    name = resolve_fleet(fleet) if fleet else ""

    def show(out: TextIO) -> None:
        summary = verb.run(verb.StatusRequest(fleet=name), make_services())
        print_status(summary.fleets, out, json=output is Output.JSON)
        if summary.damaged:
            raise summary.damaged[0]

    print_result(name, show)
