"""Instances in a reservation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import STARTS, check
from tests.emulator.client import Client

if TYPE_CHECKING:
    from tests.cloud.histories import History


def reserve(history: History) -> None:
    """Reserve instances of the history's machine, sometimes too few."""
    given = history.settings.of("gce")
    if not given["reservation"]:
        return
    count = history.workers + history.random.choice((-1, 0, 0, 1))
    name, _, gpus = given["gpu"].partition(":")
    accelerators = [{"accelerator_type": f"nvidia-tesla-{name}", "accelerator_count": int(gpus or 1)}] if name else []
    Client(history.emulator.url).reserve(
        "r1",
        max(1, count),
        machine_type="n1-standard-8" if gpus == "2" else "n1-standard-4",
        guest_accelerators=accelerators,
    )
    history.told.append(f"reservation for {max(1, count)} in us-central1-a")


STARTS.append(reserve)


@check("up")
def check_all_use_the_reservation(history: History) -> None:
    reservation = history.settings.of("gce")["reservation"]
    assert all(instance.blueprint.reservation == reservation for instance in history.running())
