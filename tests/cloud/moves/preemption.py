"""Preemption of instances."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.cloud.moves import event, sudden, worker_of

if TYPE_CHECKING:
    from tests.cloud.histories import History


@sudden
@event(0.4)
def preempt(history: History) -> None:
    is_unattended = history.settings.of("gce")["unattended"]  # the disks of its instances are kept
    for instance in history.running()[:1]:
        with contextlib.suppress(LookupError, ValueError):
            history.emulator.preempt(instance.blueprint.name, 0.0)
            if history.random.random() < 0.5:
                history.emulator.advance(1.0)
            if not is_unattended:
                history.kept = {}
                history.promised.pop(worker_of(instance.body), None)
            history.told.append(f"preempted {instance.blueprint.name}")
