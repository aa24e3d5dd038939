"""Preemption of instances."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.cloud.moves import event

if TYPE_CHECKING:
    from tests.cloud.histories import History


@event(0.2)
def preempt(history: History) -> None:
    for name in history.emulator.state()["instances"][:1]:
        with contextlib.suppress(LookupError, ValueError):
            history.emulator.preempt(name, 0.0)
            history.kept = {}
            history.told.append(f"preempted {name}")
