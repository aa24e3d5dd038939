"""`fleet status`: fleets, their hosts, and their jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, Output, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet
from fleet.errors import DamagedStateError, NotFoundError, UnreachableError, UsageError
from fleet.events import UNREADY, FleetStatus
from fleet.services import Services
from fleet.settings import NAME_VARIABLE
from fleet.steps import Step


def run(fleet: str, services: Services) -> tuple[tuple[FleetStatus, ...], tuple[DamagedStateError, ...]]:
    """Ask every host of a fleet, or of every fleet if none is named.

    Returns:
        The fleets, of which some hosts may not answer, and an error for each fleet whose files are damaged.

    Raises:
        NotFoundError: the fleet does not exist, or no fleet exists.
    """
    if fleet and not services.store.fleet(fleet).exists():
        services.store.need(fleet)
    names = [fleet] if fleet else services.store.names()
    if not names:
        raise NotFoundError("no fleet is up", next_steps=[Step("up", "--workers", "2")])
    from fleet.jobs.inspection import inspect_fleets

    return inspect_fleets(names, services)


def _check(fleets: Sequence[FleetStatus], damaged: Sequence[DamagedStateError]) -> None:
    """Raise an error if a fleet is damaged, or if none of its hosts answers although it should."""
    if damaged:
        raise damaged[0]
    for fleet in fleets:
        if fleet.hosts and not any(host.reachable or host.stopped or host.name == UNREADY for host in fleet.hosts):
            step = Step("up", fleet=fleet.name)
            raise UnreachableError(f"no host of fleet {fleet.name!r} answers", next_steps=[step])


@command("Fleets")
def status(
    watch: bool = option(False, "--watch", "Show the state again every 2 s, until Ctrl-C."),
    fleet: str = option("", "--fleet", "Show only this fleet.", "NAME", shown="all", envvar=NAME_VARIABLE),
    output: Output = OUTPUT,
) -> None:
    """Show fleets, hosts, and running jobs.

    Examples:
      fleet status
      fleet status --watch
      fleet status --fleet vision -o json
    """
    from fleet.console.formatting import is_smart

    name = resolve_fleet(fleet) if fleet else ""
    if watch and not (output is Output.AUTO and is_smart(sys.stdout, os.environ)):
        raise UsageError("--watch requires a terminal and no -o", next_steps=[Step("status")])

    def show(out: TextIO) -> None:
        from fleet.console.status import print_status, watch_status

        if watch:
            watch_status(lambda: run(name, make_services())[0], out)
            return
        fleets, damaged = run(name, make_services())
        print_status(fleets, out, json=output is Output.JSON)
        _check(fleets, damaged)

    print_result(name, show)
