"""`fleet status`: fleets, their hosts, and their jobs."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import DamagedStateError, NotFoundError, UnreachableError
from fleet.services import Services
from fleet.status import UNREADY, FleetStatus
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
