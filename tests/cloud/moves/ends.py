"""Ends of instances that no command requested; their disks are kept."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from provision.names import instance_name
from tests.cloud.moves import check, event, invariant, sudden, worker_of
from tests.emulator import lifecycle

if TYPE_CHECKING:
    from tests.cloud.histories import History


@sudden
@event(0.2)
def fail_host(history: History) -> None:
    """Let the machine of an instance fail; Compute Engine starts instances on demand again."""
    for instance in history.running()[:1]:
        with contextlib.suppress(LookupError):
            history.emulator.fail_host(instance.blueprint.name)
            history.told.append(f"the machine of {instance.blueprint.name} fails")


@sudden
@event(0.1)
def power_off(history: History) -> None:
    """Let an instance power itself off, as its agent does when it is idle or its lifetime is over."""
    for instance in history.running()[-1:]:
        with history.emulator.clock.changed:
            lifecycle.power_off(history.emulator.cloud, instance)
        history.told.append(f"{instance.blueprint.name} powers itself off")


@event(0.1)
def maintain(history: History) -> None:
    """Let Compute Engine maintain the machine of an instance, which stops for that if it has GPUs."""
    for instance in history.running()[:1]:
        with history.emulator.clock.changed:
            lifecycle.maintain(history.emulator.cloud, instance)
        history.emulator.clock.advance(3600.0)
        history.told.append(f"the machine of {instance.blueprint.name} is maintained")


@check("up", "repair", "down --keep-disks")
def promise_disks(history: History) -> None:
    """Remember the instances of the complete fleet; those that Compute Engine deletes by itself are left out."""
    if not history.deletes:
        present = {worker_of(each.body): each.body["id"] for each in history.instances(history.fleet)}
        names = map(instance_name, range(history.workers))  # `fleet up` deletes others
        history.promised = {name: present[name] for name in names if name in present}


@invariant
def check_no_disk_is_lost(history: History) -> None:
    ids = {each.body["id"] for each in history.instances(history.fleet)}
    lost = [name for name, number in history.promised.items() if number not in ids]
    assert not lost, f"lost with their disks: {', '.join(lost)}"
