"""Access from a computer that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import check, event

if TYPE_CHECKING:
    from tests.cloud.histories import History


@event(0.2)
def move_caller(history: History) -> None:
    address = history.random.choice(("198.51.100.7", "203.0.113.9"))
    history.emulator.set_caller(address)
    history.told.append(f"the caller is at {address}")


@check("up")
def check_rule_admits_caller(history: History) -> None:
    cloud = history.emulator.cloud
    assert [f"{cloud.caller}/32"] in [rule.get("sourceRanges") for rule in cloud.firewalls.values()]
