"""The methods of disks."""

from __future__ import annotations

from typing import Any

from tests.emulator import failures, lifecycle
from tests.emulator.blueprint import check_labels, last, relative
from tests.emulator.catalog import locations, machines
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, already_exists, in_use, not_found
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.project_images import refuse_copied
from tests.emulator.registry import method, starting

Json = dict[str, Any]


@method("compute.disks.get")
def get_disk(cloud: Cloud, call: Call) -> Json:
    return cloud.disks[_disk_key(cloud, call)]


@method("compute.disks.list")
def list_disks(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [disk for (zone, _), disk in cloud.disks.items() if zone == call.zone])


@method("compute.disks.aggregatedList")
def aggregated_disks(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"zones/{zone}": [] for zone in locations.ZONES}
    for (zone, _), disk in sorted(cloud.disks.items()):
        scoped[f"zones/{zone}"].append(disk)
    return aggregated(cloud, call, scoped)


@starting("compute.disks.insert")
def insert_disk(cloud: Cloud, call: Call) -> Json:
    zone = existing_name(cloud, call, "zone", locations.ZONES, "zones")
    name = call.body["name"]
    if (zone, name) in cloud.disks:
        raise already_exists(f"projects/{cloud.project}/zones/{zone}/disks/{name}")
    kind = last(call.body.get("type", "pd-standard"))
    if kind not in machines.DISK_TYPES:
        raise not_found(f"projects/{cloud.project}/zones/{zone}/diskTypes/{kind}")
    disk = {
        "name": name,
        "type": kind,
        "sizeGb": call.body.get("sizeGb", "100"),
        "labels": call.body.get("labels", {}),
    }
    check_labels(disk["labels"], "resource.labels")
    if "sourceImage" in call.body:
        disk["sourceImage"] = relative(call.body["sourceImage"])

    def begin() -> Failure | None:
        if (zone, name) in cloud.disks:
            return failures.operation_failure("RESOURCE_ALREADY_EXISTS", f"The disk '{name}' already exists", 409)
        lifecycle.make_disk(cloud, zone, disk)
        return None

    return launch(cloud, call, "insert", f"{cloud.base}/zones/{zone}/disks/{name}", begin)


@starting("compute.disks.delete")
def delete_disk(cloud: Cloud, call: Call) -> Json:
    key = _disk_key(cloud, call)
    disk = cloud.disks[key]
    if disk.get("users"):
        raise in_use(relative(disk["selfLink"]), relative(disk["users"][0]))
    refuse_copied(cloud, disk["selfLink"])

    def begin() -> Failure | None:
        cloud.disks.pop(key, None)
        cloud.charges.end(disk["id"], cloud.clock.now())
        return None

    return launch(cloud, call, "delete", disk["selfLink"], begin)


def _disk_key(cloud: Cloud, call: Call) -> tuple[str, str]:
    key = (call.zone, call.path["disk"])
    if key not in cloud.disks:
        raise not_found(f"projects/{cloud.project}/zones/{call.zone}/disks/{call.path['disk']}")
    return key
