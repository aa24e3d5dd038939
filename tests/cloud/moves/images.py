"""Images of prepared hosts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.cli.fleets import bake, gc
from fleet.errors import FleetError
from fleet.state import BAKING, Store
from tests.cloud.moves import STARTS, check, command, event
from tests.settings import settings

if TYPE_CHECKING:
    from tests.cloud.histories import History


@command("bake", weight=1)
def run_bake(history: History) -> None:
    baked = bake.run(bake.BakeRequest(history.settings), history.services(), history.sink())
    assert baked is not None
    history.images.add(baked.image)


def bake_first(history: History) -> None:
    """In some histories, let the user bake on another computer before the first command."""
    if history.random.random() < 0.15:
        bake_elsewhere(history)


STARTS.append(bake_first)


@event(0.05)
def bake_elsewhere(history: History) -> None:
    """Let the user bake on another computer, without faults."""
    history.emulator.faults.clear()
    services = replace(history.services(), store=Store(history.root / "elsewhere"), unprepared=False)
    with contextlib.suppress(FleetError):  # a killed command may have left an image that is not ready
        baked = bake.run(bake.BakeRequest(history.settings), services, history.sink())
        assert baked is not None
        history.images.add(baked.image)
        history.told.append(f"baked {baked.image} elsewhere")


@check("up")
def check_hosts_boot_from_images_that_exist(history: History) -> None:
    disks = list(history.emulator.cloud.disks.values())  # operations may run
    booted = {disk["sourceImage"].rpartition("/")[2] for disk in disks}
    assert {name for name in booted if name.startswith("fleet-")} <= {*history.emulator.state()["images"]}


@command("gc --images")
def run_gc_of_images(history: History) -> None:
    request = gc.GcRequest(settings(project="proj-1", endpoint=history.emulator.url), images=True)
    gc.run(request, history.services(), history.sink())
    history.images.clear()


@check("bake")
def check_no_host_of_an_image_is_left(history: History) -> None:
    assert not history.instances(BAKING)


@check("bake", "up", "down", "gc")
def check_images_are_kept(history: History) -> None:
    assert history.images <= set(history.emulator.state()["images"])


@check("gc --images")
def check_no_image_is_left(history: History) -> None:
    state = history.emulator.state()
    held = {key: state[key] for key in ("instances", "disks", "firewalls", "addresses", "operations", "images")}
    assert not any(held.values()), held
