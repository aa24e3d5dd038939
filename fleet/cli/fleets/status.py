"""The command `fleet status`: its options, and the request that they make."""

from __future__ import annotations

import os
import sys
from typing import Annotated, TextIO

from fleet.cli.options import Output, OutputOption, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet
from fleet.config import NAME_VARIABLE
from fleet.errors import UsageError
from fleet.steps import Step


def status(
    watch: Annotated[bool, option("--watch", "Show the state again every 2 s, until Ctrl-C.")] = False,
    fleet: Annotated[
        str, option("--fleet", "Show only this fleet.", "NAME", default="all", envvar=NAME_VARIABLE)
    ] = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show fleets, hosts, and running jobs.

    Examples:
      fleet status
      fleet status --watch
      fleet status --fleet vision -o json
    """
    from fleet.commands.fleets import status as verb
    from fleet.console.colors import is_smart

    name = resolve_fleet(fleet) if fleet else ""
    if watch and not (output is Output.AUTO and is_smart(sys.stdout, os.environ)):
        raise UsageError("--watch requires a terminal and no -o", next_steps=[Step("status")])

    def show(out: TextIO) -> None:
        if watch:
            from fleet.console.status_table import watch_status

            watch_status(lambda: verb.run(verb.StatusRequest(fleet=name), make_services()).fleets, out)
            return
        summary = verb.run(verb.StatusRequest(fleet=name), make_services())
        from fleet.console.status_table import print_status

        print_status(summary.fleets, out, json=output is Output.JSON)
        summary.check()

    print_result(name, show)
