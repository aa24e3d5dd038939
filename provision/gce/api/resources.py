"""Convert resources of Compute Engine's REST API to the data classes of provisioning."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from provision.gce.api.requests import FIXED_END, RESTARTS, items_of
from provision.gce.catalog.machines import FLEX_START, SPOT, series_of
from provision.gce.catalog.names import stem
from provision.gce.catalog.prices import Prices
from provision.gce.options import END_AT, STOP_AT, GceOptions
from provision.model import Instance, InstanceState
from provision.names import index_of

Json = dict[str, Any]

_STATES = {
    "PENDING": InstanceState.QUEUED,
    "PROVISIONING": InstanceState.STARTING,
    "STAGING": InstanceState.STARTING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.RESTARTING,
    "PENDING_STOP": InstanceState.STOPPING,
    "STOPPING": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
}
GUEST_ATTRIBUTE = "Guest Attribute"
SCRATCH = "SCRATCH"
"""Type of Local SSDs, attached or included in the machine type."""
HOST_KEY = "ssh-ed25519"
_KEYS_BEGIN, _KEYS_END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"


def last(url: str) -> str:
    """Return the last part of a URL or path, the resource's name."""
    return url.rsplit("/", 1)[-1]


def zone_of(resource: Mapping[str, Any]) -> str:
    """Return the name of the zone that a resource is in."""
    return last(str(resource.get("zone", "")))


def seconds(text: str) -> float:
    """Return a time in RFC 3339 format as seconds since the epoch; 0 if it is empty or invalid."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def owned(resources: Iterable[Json], owner: str) -> list[Json]:
    """Return those of `resources` that this owner created."""
    return [resource for resource in resources if resource.get("labels", {}).get("fleet-owner") == owner]


def our_name(resource: Mapping[str, Any]) -> str:
    """Return the name of an instance within its fleet, ``worker-0``; its full name if it belongs to no fleet."""
    labels = resource.get("labels", {})
    base = stem(str(labels.get("fleet", "")), str(labels.get("fleet-owner", "")))
    return str(resource.get("name", "")).removeprefix(f"{base}-")


def zones_tried(operation: Mapping[str, Any]) -> frozenset[str]:
    """Return the zones in which a bulkInsert reports that it tried to create instances.

    Source: ``instancesBulkInsertOperationMetadata`` of Operation in the discovery document of the Compute Engine API.
    """
    statuses = operation.get("instancesBulkInsertOperationMetadata", {}).get("perLocationStatus", {})
    return frozenset(last(str(location)) for location in statuses)


def place_of(url: str) -> tuple[str, str]:
    """Return zone and name of the instance at a URL, ``…/zones/ZONE/instances/NAME``; empty for other URLs."""
    words = url.split("/")
    return (words[-3], words[-1]) if len(words) > 3 else ("", "")


def created_count(operation: Mapping[str, Any]) -> int | None:
    """Return the number of instances that a failed bulkInsert created before it failed; None: it did not fail.

    Source: ``instancesBulkInsertOperationMetadata`` of Operation in the discovery document of the Compute Engine API.
    """
    if "error" not in operation:
        return None
    statuses = operation.get("instancesBulkInsertOperationMetadata", {}).get("perLocationStatus", {})
    return sum(int(status.get("createdVmCount", 0)) for status in statuses.values())


def cloud_of(resource: Mapping[str, Any], disk_type: str = "") -> GceOptions:
    """Return those options of an instance that determine its price.

    Args:
        resource: The instance.
        disk_type: Type of its disks, which it does not show; empty: the default of its machine type.
    """
    gpus: Sequence[Json] = resource.get("guestAccelerators") or ({},)
    interfaces: Sequence[Json] = resource.get("networkInterfaces") or ()
    machine_type = last(str(resource.get("machineType", "")))
    scratch = sum(disk.get("type") == SCRATCH for disk in resource.get("disks", ()))
    model = resource.get("scheduling", {}).get("provisioningModel")
    return GceOptions(
        machine_type=machine_type,
        gpu=last(str(gpus[0].get("acceleratorType", ""))),
        gpus=int(gpus[0].get("acceleratorCount", 0)),
        spot=model == SPOT,
        flex_start=model == FLEX_START,
        disk_gb=sum(
            int(disk.get("diskSizeGb", 0)) for disk in resource.get("disks", ()) if disk.get("type") != SCRATCH
        ),
        local_ssds=scratch if series_of(machine_type).local_ssds else 0,  # others are part of the machine type
        disk_type=disk_type,
        external=any(interface.get("accessConfigs") for interface in interfaces),
    )


def state_of(resource: Mapping[str, Any]) -> InstanceState:
    """Return the state of an instance; one that starts and has run before keeps the files on its disk."""
    state = _STATES.get(str(resource.get("status", "")), InstanceState.STOPPED)
    has_run = any(resource.get(key) for key in ("lastStartTimestamp", "lastStopTimestamp"))
    return InstanceState.RESTARTING if state is InstanceState.STARTING and has_run else state


def instance(resource: Mapping[str, Any], prices: Prices, disk_type: str = "", *, ahead_s: float = 0.0) -> Instance:
    """Return an instance of the API as an Instance.

    Args:
        resource: The instance.
        prices: Of the machines.
        disk_type: As in `cloud_of`.
        ahead_s: Seconds by which the clock of the API is ahead of the clock of this computer.
    """

    def local(at: float) -> float:
        return at and at - ahead_s

    zone = zone_of(resource)
    price = prices.price(cloud_of(resource, disk_type), zone)
    scheduling = resource.get("resourceStatus", {}).get("scheduling", {})
    window = resource.get("resourceStatus", {}).get("upcomingMaintenance", {})
    state = state_of(resource)
    items = items_of(resource)
    end = local(seconds(str(resource.get("scheduling", {}).get(FIXED_END, ""))))

    def scheduled(name: str) -> float:
        text = items.get(name, "")
        return local(float(text)) if text.isdecimal() and state is not InstanceState.STOPPED else 0.0

    return Instance(
        name=our_name(resource),
        fleet=str(resource.get("labels", {}).get("fleet", "")),
        id=str(resource.get("id", "")),
        state=state,
        zone=zone,
        price_usd_h=price.usd_h if price else 0.0,
        created_at=local(seconds(str(resource.get("creationTimestamp", "")))),
        delete_at=local(seconds(str(scheduling.get("terminationTimestamp", "")))),
        stopped_usd_h=price.stopped_usd_h if price else 0.0,
        started_at=local(seconds(str(resource.get("lastStartTimestamp", "")))),
        stopped_at=local(seconds(str(resource.get("lastStopTimestamp", "")))),
        stop_at=scheduled(STOP_AT),
        end_at=scheduled(END_AT),
        restarts_until=end if RESTARTS in items else None,
        maintenance_start=local(seconds(str(window.get("windowStartTime", "")))),
        maintenance_end=local(seconds(str(window.get("windowEndTime", "")))),
    )


def in_order(instances: Iterable[Instance]) -> list[Instance]:
    """Return instances sorted by fleet and index; an instance without an index in its name comes last."""

    def sort_key(worker: Instance) -> tuple[str, int, str]:
        try:
            return (worker.fleet, index_of(worker.name), worker.id)
        except ValueError:
            return (worker.fleet, 1 << 30, worker.name)

    return sorted(instances, key=sort_key)


def addresses(resource: Mapping[str, Any]) -> tuple[str, str]:
    """Return the internal and the external address of an instance; empty if it has none."""
    card = (resource.get("networkInterfaces") or [{}])[0]
    outside = [config.get("natIP", "") for config in card.get("accessConfigs", ())]
    return str(card.get("networkIP", "")), str(next(filter(None, outside), ""))


def host_key(answer: Mapping[str, Any]) -> str:
    """Return the host key in guest attributes of the namespace ``hostkeys``, in OpenSSH format; empty: none yet.

    The guest agent of Google's images publishes it: https://cloud.google.com/compute/docs/metadata/manage-guest-attributes
    """
    for item in answer.get("queryValue", {}).get("items", ()):
        words = str(item.get("value", "")).split()
        if item.get("key") == HOST_KEY and words and _is_base64(words[0]):
            return f"{HOST_KEY} {words[0]}"
    return ""


def console_host_key(text: str) -> str:
    """Return the host key that cloud-init last printed on a serial console, in OpenSSH format; empty: none yet.

    Lines of users' programs have a prefix there, so they cannot imitate those of cloud-init.

    Source: https://docs.cloud-init.io/en/latest/reference/modules.html (Keys to Console).
    """
    key = ""
    inside = False
    for line in text.splitlines():
        words = line.split()
        if line in (_KEYS_BEGIN, _KEYS_END):
            inside = line == _KEYS_BEGIN
        elif inside and len(words) >= 2 and words[0] == HOST_KEY and _is_base64(words[1]):
            key = f"{HOST_KEY} {words[1]}"
    return key


def _is_base64(text: str) -> bool:
    try:
        return base64.b64decode(text, validate=True)[4:].startswith(HOST_KEY.encode())
    except (ValueError, binascii.Error):
        return False
