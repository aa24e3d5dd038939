"""The methods of operations."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import project_of
from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import not_found
from tests.emulator.listing import aggregated, page
from tests.emulator.operations import Operation
from tests.emulator.registry import method

Json = dict[str, Any]
_LONGEST_WAIT_S = 120.0


@method("compute.zoneOperations.get", "compute.regionOperations.get", "compute.globalOperations.get")
def get(cloud: Cloud, call: Call) -> Json:
    return _of(cloud, call).body


@method("compute.zoneOperations.wait", "compute.regionOperations.wait", "compute.globalOperations.wait")
def wait(cloud: Cloud, call: Call) -> Json:
    operation = _of(cloud, call)
    scope, name = operation.scope, operation.body["name"]
    cloud.clock.wait_for(lambda: operation.done or cloud.operations.find(scope, name) is None, _LONGEST_WAIT_S)
    return operation.body


@method("compute.zoneOperations.list", "compute.regionOperations.list", "compute.globalOperations.list")
def list_(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [operation.body for operation in cloud.operations.of(call.scope)])


@method("compute.globalOperations.aggregatedList")
def aggregated_list(cloud: Cloud, call: Call) -> Json:
    scopes = [
        "global",
        *(f"regions/{name}" for name in locations.REGIONS),
        *(f"zones/{name}" for name in locations.ZONES),
    ]
    scoped: dict[str, list[Json]] = {scope: [] for scope in scopes}
    for operation in cloud.operations.of():
        if project_of(operation.body["selfLink"]) != call.path["project"]:
            continue
        scoped[operation.scope].append(operation.body)
    return aggregated(cloud, call, scoped)


@method("compute.zoneOperations.delete", "compute.regionOperations.delete", "compute.globalOperations.delete")
def delete(cloud: Cloud, call: Call) -> Json:
    cloud.operations.delete(_of(cloud, call))
    return {}


def _of(cloud: Cloud, call: Call) -> Operation:
    name = call.path["operation"]
    operation = cloud.operations.find(call.scope, name)
    if operation is None or project_of(operation.body["selfLink"]) != call.path["project"]:
        raise not_found(f"projects/{call.path['project']}/{call.scope}/operations/{name}")
    return operation
