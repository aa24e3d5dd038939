"""A fleet from `fleet up` to `fleet down` or `fleet gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.cli.fleets import down, gc, up
from fleet.fleets.plan import UpRequest
from tests.cloud.moves import check, command
from tests.settings import settings

if TYPE_CHECKING:
    from tests.cloud.histories import History


@command("up", weight=3)
def run_up(history: History) -> None:
    request = UpRequest(history.fleet, history.settings, retry_until_up=history.random.random() < 0.3)
    up.run(request, history.services(), history.sink())


@command("down", weight=1)
def run_down(history: History) -> None:
    history.kept, history.promised = {}, {}
    down.run(down.DownRequest(history.fleet), history.services(), history.sink())


@command("gc", weight=1)
def run_gc(history: History) -> None:
    request = gc.GcRequest(settings(project="proj-1", endpoint=history.emulator.url))
    gc.run(request, history.services(), history.sink())


@check("up")
def check_all_run_in_one_zone(history: History) -> None:
    if history.is_disturbed:
        return
    running = history.running()
    assert len(running) == history.workers
    assert len({instance.blueprint.zone for instance in running}) == 1


@check("down")
def check_nothing_is_left(history: History) -> None:
    state = history.emulator.state()
    names = [name for key in ("instances", "disks", "firewalls", "addresses", "policies") for name in state[key]]
    assert not [name for name in names if name.startswith(f"{history.fleet}-")], names
    assert not state["operations"]
