"""`fleet status`: fleets, their hosts, and their jobs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TextIO

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, Output, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet
from fleet.errors import DamagedStateError, NotFoundError, UnreachableError, UsageError
from fleet.events import UNREADY, FleetStatus
from fleet.services import Services
from fleet.settings import NAME_VARIABLE
from fleet.steps import Step


@dataclass(frozen=True)
class StatusRequest:
    """Request of the command; an empty `fleet` means all fleets."""

    fleet: str = ""


@dataclass(frozen=True)
class StatusSummary:
    """The fleets, and errors of those whose files are damaged."""

    fleets: tuple[FleetStatus, ...]
    damaged: tuple[DamagedStateError, ...] = ()

    def check(self) -> None:
        """Raise an error if a fleet is damaged, or if none of its hosts answers although it should.

        Raises:
            DamagedStateError: the files of a fleet are damaged.
            UnreachableError: no host of a fleet answers.
        """
        if self.damaged:
            raise self.damaged[0]
        for fleet in self.fleets:
            if fleet.hosts and not any(
                host.reachable or host.stopped or host.name == UNREADY for host in fleet.hosts
            ):
                raise UnreachableError(
                    f"no host of fleet {fleet.name!r} answers", next_steps=[Step("up", fleet=fleet.name)]
                )


def run(request: StatusRequest, services: Services) -> StatusSummary:
    """Ask every host of every fleet; show hosts that do not answer, and fleets with damaged files, as such.

    Raises:
        NotFoundError: the fleet does not exist, or no fleet exists.
    """
    if request.fleet and not services.store.fleet(request.fleet).exists():
        services.store.need(request.fleet)
    names = [request.fleet] if request.fleet else services.store.names()
    if not names:
        raise NotFoundError("no fleet is up", next_steps=[Step("up", "--workers", "2")])
    from fleet.jobs.inspection import inspect_fleets

    fleets, damaged = inspect_fleets(names, services)
    return StatusSummary(fleets, damaged)


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
        if watch:
            from fleet.console.status import watch_status

            watch_status(lambda: run(StatusRequest(fleet=name), make_services()).fleets, out)
            return
        summary = run(StatusRequest(fleet=name), make_services())
        from fleet.console.status import print_status

        print_status(summary.fleets, out, json=output is Output.JSON)
        summary.check()

    print_result(name, show)
