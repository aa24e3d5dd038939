"""`fleet status`: fleets, their hosts, and their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.errors import DamagedStateError, NotFoundError
from fleet.services import Services
from fleet.steps import Step
from provision.deferred import dataclass

if TYPE_CHECKING:
    from fleet.status import FleetStatus


@dataclass(frozen=True)
class StatusRequest:
    """Request of the command; an empty `fleet` means all fleets."""

    fleet: str = ""


@dataclass(frozen=True)
class StatusSummary:
    """The fleets, and errors of those whose files are damaged."""

    fleets: tuple[FleetStatus, ...]
    damaged: tuple[DamagedStateError, ...] = ()


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
