"""Zones that do not answer for a time; no command may take their instances as missing or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import event, sudden

if TYPE_CHECKING:
    from tests.cloud.histories import History


@sudden
@event(0.3)
def change_outage(history: History) -> None:
    used = sorted({instance.blueprint.zone for instance in history.instances(history.fleet)})
    zones = history.random.choice(((), used[:1], used[:1], ("us-west4-a",)))
    history.emulator.set_outage(*zones)
    history.told.append(f"zones that do not answer: {', '.join(zones) or 'none'}")
