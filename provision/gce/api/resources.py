"""Convert messages of Compute Engine to the data classes of provisioning."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from google.cloud import compute_v1

from provision.gce.api.requests import RESTARTS, items_of
from provision.gce.catalog.gpus import FLEX_START, SPOT
from provision.gce.catalog.machines import series_of
from provision.gce.catalog.names import last, stem
from provision.gce.catalog.prices import Prices
from provision.gce.options import END_AT, STOP_AT, GceOptions
from provision.model import Instance, InstanceState
from provision.names import index_of


class InZone(Protocol):
    """A resource of a zone."""

    zone: str


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


def zone_of(resource: InZone) -> str:
    """Return the name of the zone that a resource is in."""
    return last(resource.zone)


def seconds(text: str) -> float:
    """Return a time in RFC 3339 format as seconds since the epoch; 0 if it is empty or invalid."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def our_name(resource: compute_v1.Instance) -> str:
    """Return the name of an instance within its fleet, ``worker-0``; its full name if it belongs to no fleet."""
    labels = resource.labels
    return resource.name.removeprefix(f"{stem(labels.get('fleet', ''), labels.get('fleet-owner', ''))}-")


def zones_tried(operation: compute_v1.Operation) -> frozenset[str]:
    """Return the zones in which a bulkInsert reports that it tried to create instances."""
    return frozenset(map(last, operation.instances_bulk_insert_operation_metadata.per_location_status))


def place_of(url: str) -> tuple[str, str]:
    """Return zone and name of the instance at a URL, ``…/zones/ZONE/instances/NAME``; empty for other URLs."""
    words = url.split("/")
    return (words[-3], words[-1]) if len(words) > 3 else ("", "")


def created_count(operation: compute_v1.Operation) -> int | None:
    """Return the number of instances that a failed bulkInsert created before it failed; None: it did not fail."""
    if not operation.error.errors:
        return None
    statuses = operation.instances_bulk_insert_operation_metadata.per_location_status
    return sum(status.created_vm_count for status in statuses.values())


def cloud_of(resource: compute_v1.Instance, disk_type: str = "") -> GceOptions:
    """Return those options of an instance that determine its price.

    Args:
        resource: The instance.
        disk_type: Type of its disks, which it does not show; empty: the default of its machine type.
    """
    gpus = next(iter(resource.guest_accelerators), compute_v1.AcceleratorConfig())
    machine_type, model = last(resource.machine_type), resource.scheduling.provisioning_model
    scratch = sum(disk.type_ == SCRATCH for disk in resource.disks)
    return GceOptions(
        machine_type=machine_type,
        gpu=last(gpus.accelerator_type),
        gpus=gpus.accelerator_count,
        spot=model == SPOT,
        flex_start=model == FLEX_START,
        disk_gb=sum(disk.disk_size_gb for disk in resource.disks if disk.type_ != SCRATCH),
        local_ssds=scratch if series_of(machine_type).local_ssds else 0,  # others are part of the machine type
        disk_type=disk_type,
        external=any(interface.access_configs for interface in resource.network_interfaces),
    )


def state_of(resource: compute_v1.Instance) -> InstanceState:
    """Return the state of an instance; one that starts and has run before keeps the files on its disk."""
    state = _STATES.get(resource.status, InstanceState.STOPPED)
    has_run = resource.last_start_timestamp or resource.last_stop_timestamp
    return InstanceState.RESTARTING if state is InstanceState.STARTING and has_run else state


def instance(resource: compute_v1.Instance, prices: Prices, disk_type: str = "", *, ahead_s: float = 0.0) -> Instance:
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
    status, state, items = resource.resource_status, state_of(resource), items_of(resource)

    def scheduled(name: str) -> float:
        text = items.get(name, "")
        return local(float(text)) if text.isdecimal() and state is not InstanceState.STOPPED else 0.0

    return Instance(
        name=our_name(resource),
        fleet=resource.labels.get("fleet", ""),
        id=str(resource.id),
        state=state,
        zone=zone,
        price_usd_h=price.usd_h if price else 0.0,
        created_at=local(seconds(resource.creation_timestamp)),
        delete_at=local(seconds(status.scheduling.termination_timestamp)),
        stopped_usd_h=price.stopped_usd_h if price else 0.0,
        started_at=local(seconds(resource.last_start_timestamp)),
        stopped_at=local(seconds(resource.last_stop_timestamp)),
        stop_at=scheduled(STOP_AT),
        end_at=scheduled(END_AT),
        restarts_until=local(seconds(resource.scheduling.termination_time)) if RESTARTS in items else None,
        maintenance_start=local(seconds(status.upcoming_maintenance.window_start_time)),
        maintenance_end=local(seconds(status.upcoming_maintenance.window_end_time)),
    )


def in_order(instances: Iterable[Instance]) -> list[Instance]:
    """Return instances sorted by fleet and index; an instance without an index in its name comes last."""

    def sort_key(worker: Instance) -> tuple[str, int, str]:
        try:
            return (worker.fleet, index_of(worker.name), worker.id)
        except ValueError:
            return (worker.fleet, 1 << 30, worker.name)

    return sorted(instances, key=sort_key)


def addresses(resource: compute_v1.Instance) -> tuple[str, str]:
    """Return the internal and the external address of an instance; empty if it has none."""
    card = next(iter(resource.network_interfaces), compute_v1.NetworkInterface())
    return card.network_i_p, next((config.nat_i_p for config in card.access_configs if config.nat_i_p), "")


def host_key(answer: compute_v1.GuestAttributes) -> str:
    """Return the host key in guest attributes of the namespace ``hostkeys``, in OpenSSH format; empty: none yet.

    The guest agent of Google's images publishes it: https://cloud.google.com/compute/docs/metadata/manage-guest-attributes
    """
    keys = (item.value.split() for item in answer.query_value.items if item.key == HOST_KEY)
    return next((f"{HOST_KEY} {words[0]}" for words in keys if words and _is_base64(words[0])), "")


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
