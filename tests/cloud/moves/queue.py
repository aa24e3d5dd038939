"""Flex-start VMs that wait for capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.fuses import Killed
from tests.cloud.moves import QUEUED, RETRIED, STARTS, check
from tests.emulator.catalog import ZONES

if TYPE_CHECKING:
    from tests.cloud.histories import History
    from tests.cloud.moves import Story


def make_scarce(history: Story, workers: int) -> None:
    """Let the zones have capacity for fewer workers, so that Flex-start VMs must wait."""
    limit = history.random.randrange(workers)
    for zone in ZONES:
        history.emulator.set_capacity(zone, limit)
    history.told.append(f"capacity for {limit} in each zone")


def limit_capacity(history: History) -> None:
    """Make capacity scarce before the first command of many histories with Flex-start VMs."""
    if history.settings.of("gce")["flex_start"] and history.random.random() < 0.7:
        make_scarce(history, history.workers)


def free_capacity(history: Story, zone: str) -> None:
    history.told.append(f"capacity in {zone}")
    history.emulator.set_capacity(zone, 100)


def expire(history: Story, zone: str) -> None:
    history.told.append(f"the queue of {zone} expires")
    history.emulator.clock.advance(7200)


def kill(history: Story, zone: str) -> None:
    history.told.append("killed while it waits for capacity")
    raise Killed


def interrupt(history: Story, zone: str) -> None:
    history.told.append("interrupted while it waits for capacity")
    raise KeyboardInterrupt


STARTS.append(limit_capacity)
QUEUED += [free_capacity, expire, kill, interrupt]
RETRIED += [lambda history: kill(history, ""), lambda history: interrupt(history, "")]


@check("up")
def check_none_is_queued(history: History) -> None:
    assert not [each for each in list(history.emulator.cloud.instances.values()) if each.status == "PENDING"]
