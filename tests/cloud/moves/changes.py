"""Changes of a fleet that exists: another number of workers, another deadline, and the replacement of lost hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.cli.fleets import extend
from fleet.fleets.repair import ExistingFleet, repair_fleet
from provision.names import instance_name
from tests.cloud.moves import check, command, event

if TYPE_CHECKING:
    from tests.cloud.histories import History

LIFETIME_S = 4 * 3600


@event(0.2)
def request_other_number(history: History) -> None:
    if not history.kept:  # those that `fleet down --keep-disks` has stopped are compared after the next start
        history.workers = history.random.choice((1, 2, 3, 4))
        history.settings = replace(history.settings, workers=history.workers)
        names = {*map(instance_name, range(history.workers))}
        history.promised = {name: number for name, number in history.promised.items() if name in names}
        history.told.append(f"{history.workers} workers are requested")


@command("extend", weight=2)
def run_extend(history: History) -> None:
    if not history.kept:
        extend.run(extend.ExtendRequest(history.fleet, LIFETIME_S), history.services(), history.sink())


@command("repair", weight=2)
def run_repair(history: History) -> None:
    """Replace lost hosts, as commands do that follow a job."""
    if not history.kept:
        services = history.services()
        directory, record = services.store.need(history.fleet)
        repair_fleet(ExistingFleet(record, directory, services, "logs"), history.sink())


@check("repair")
def check_all_are_replaced(history: History) -> None:
    # Otherwise nothing was repaired, and another computer may have started the instances.
    if not history.kept and not history.is_disturbed:
        assert len({instance.blueprint.zone for instance in history.running()}) == 1
