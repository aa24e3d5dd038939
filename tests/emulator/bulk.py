"""Bulk inserts: several instances by one call, all in one zone, at least ``minCount`` or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.emulator import creation, instances, lifecycle, messages
from tests.emulator.blueprint import Blueprint, draw
from tests.emulator.cloud import Call, Cloud, Instance, starting
from tests.emulator.faults import Rule
from tests.emulator.messages import Failure, invalid, refusal
from tests.emulator.operations import Done, Operation, Work
from tests.emulator.resources import find_image

Json = dict[str, Any]


@dataclass
class _Bulk:
    """A bulk insert in progress.

    Attributes:
        zone: The zone of all instances.
        min_count: If fewer can be created, none is kept.
        drawn: The requested instances.
        children: The insert operation of each.
        made: The created instances.
        failures: The causes of the others.
    """

    zone: str
    min_count: int
    drawn: list[Blueprint]
    children: list[Operation] = field(default_factory=list)
    made: list[Instance] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fault: Rule | None = None

    @property
    def failed(self) -> bool:
        """Return whether fewer than `min_count` could be created."""
        return len(self.made) < self.min_count or bool(self.fault and self.fault.kind.startswith("partial"))


@starting("compute.instances.bulkInsert")
def zonal(cloud: Cloud, call: Call) -> Json:
    bulk = _draw(cloud, call, call.zone)
    for drawn in bulk.drawn:
        lifecycle.refuse_taken_names(cloud, drawn)
    return _launch(cloud, call, bulk)


def _draw(cloud: Cloud, call: Call, zone: str) -> _Bulk:
    body = call.body
    if "instanceProperties" not in body:
        raise refusal("required", field="resource.instanceProperties")
    count = int(body.get("count", 0))
    if not 1 <= count <= 1000:
        raise invalid("resource.count", count, "It must be from 1 to 1000.")
    min_count = int(body.get("minCount", count))
    if not 1 <= min_count <= count:
        raise invalid("resource.minCount", min_count, "It must be from 1 to count.")
    drawn = [
        draw(cloud.project, zone, name, body["instanceProperties"], partial(find_image, cloud), bulk=True)
        for name in _names(body, count)
    ]
    creation.check(cloud, drawn[0])
    return _Bulk(zone, min_count, drawn, fault=call.fault)


def _names(body: Json, count: int) -> list[str]:
    each = body.get("perInstanceProperties", {})
    if len(each) != count:
        raise invalid("resource.perInstanceProperties", len(each), f"There must be {count} of them.")
    if any("name" in given for given in each.values()):
        raise invalid("resource.perInstanceProperties", each, "The field 'name' is output only.")
    return list(each)


def _launch(cloud: Cloud, call: Call, bulk: _Bulk) -> Json:
    """Start the operation."""
    group = str(uuid.uuid4())

    def begin() -> None:
        _begin(cloud, bulk, group, parent)

    def finish(done: Done) -> None:
        _finish(cloud, bulk, parent, done)

    target = f"{cloud.base}/{call.scope}/instances"
    parent = lifecycle.launch(cloud, call, target, begin, finish, operationGroupId=group)
    return parent.body


def _begin(cloud: Cloud, bulk: _Bulk, group: str, parent: Operation) -> None:
    """Create the instances that the zone has capacity for, each with its own insert operation."""
    for drawn in bulk.drawn:
        failure = _struck(bulk, drawn) or instances.name_taken(cloud, drawn) or lifecycle.shortage(cloud, drawn)
        child = _child(cloud, bulk, drawn, group, failure)
        bulk.children.append(child)
        if failure is None:
            instance = lifecycle.appear(cloud, drawn)
            instance.latest = parent
            child.body["targetId"] = instance.body["id"]
            bulk.made.append(instance)
        else:
            bulk.failures.append(failure)
            if bulk.fault and bulk.fault.kind == "disk-left":
                lifecycle.make_disks(cloud, drawn)
    _show(bulk, parent, "CREATING", 0)


def _struck(bulk: _Bulk, drawn: Blueprint) -> Failure | None:
    """Return the failure that the fault of the call causes for one of the instances."""
    fault = bulk.fault
    if fault is None:
        return None
    if fault.kind.startswith("partial"):
        room = min(fault.created or len(bulk.drawn) // 2, len(bulk.drawn) - 1)
        return drawn.stockout(fault.zones_available) if len(bulk.made) >= room else None
    return fault.failure(drawn)


def _child(cloud: Cloud, bulk: _Bulk, drawn: Blueprint, group: str, failure: Failure | None) -> Operation:
    target = f"{cloud.base}/zones/{bulk.zone}/instances/{drawn.name}"
    made = bulk.made

    def finish(done: Done) -> None:
        # Its instance, unless the bulk insert has already deleted it.
        for instance in made:
            if instance.blueprint is drawn:
                lifecycle.start(cloud, instance)
        done(None)

    work = Work(lambda: failure, finish)
    return cloud.operations.launch(f"zones/{bulk.zone}", "insert", target, work, operationGroupId=group)


def _finish(cloud: Cloud, bulk: _Bulk, parent: Operation, done: Done) -> None:
    """Wait for the children; then keep all instances, or delete all."""
    pending = [child for child in bulk.children if not child.done]
    if pending:
        pending[-1].followers.append(lambda: _finish(cloud, bulk, parent, done))
        return
    if not bulk.failed:
        _show(bulk, parent, "DONE", 0)
        done(None)
        return
    causes = tuple(error for failure in bulk.failures[:1] for error in failure.errors)
    minimum = messages.failure("minimum", count=bulk.min_count)
    failure = Failure((*minimum.errors, *causes), minimum.http)
    if bulk.fault and bulk.fault.kind == "partial-left":
        _show(bulk, parent, "DONE", 0)
        done(failure)
        return
    _show(bulk, parent, "ROLLING_BACK", 0)

    def taken_back() -> None:
        _show(bulk, parent, "DONE", len(bulk.made))
        done(failure)

    _take_back(cloud, bulk, taken_back)


def _take_back(cloud: Cloud, bulk: _Bulk, then: Callable[[], None]) -> None:
    """Delete the created instances; then call `then`."""
    remaining = [instance for instance in bulk.made if not lifecycle.gone(cloud, instance)]
    if not remaining:
        then()

    def removed() -> None:
        if all(lifecycle.gone(cloud, instance) for instance in remaining) and remaining:
            remaining.clear()
            then()

    for instance in list(remaining):
        lifecycle.vanish(cloud, instance, removed)


def _show(bulk: _Bulk, parent: Operation, status: str, deleted: int) -> None:
    parent.body["instancesBulkInsertOperationMetadata"] = {
        "perLocationStatus": {
            f"zones/{bulk.zone}": {
                "status": status,
                "targetVmCount": len(bulk.drawn),
                "createdVmCount": len(bulk.made),
                "failedToCreateVmCount": len(bulk.failures),
                "deletedVmCount": deleted,
            }
        }
    }
