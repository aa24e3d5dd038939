"""Messages of Compute Engine: bodies of the requests for a fleet, and what the answers are for provisioning.

Source: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.cloud import compute_v1

from provision.gce.api.client import from_json, to_json
from provision.gce.api.prices import Prices
from provision.gce.catalog.gpus import FLEX_START, RESERVATION_BOUND, SPOT, STANDARD
from provision.gce.catalog.machines import COMPACT, can_migrate, gpu_of, has_gpus, provisioning_model, series_of
from provision.gce.catalog.names import (
    Fleet,
    labels,
    last,
    network_of,
    network_path,
    region_of,
    stem,
    subnetwork_path,
)
from provision.gce.options import END_AT, IDLE_TIMEOUT, LOCAL_SSD, STOP_AT, GceOptions
from provision.model import Instance, InstanceState
from provision.names import index_of
from provision.options import split_pair


def scheduling(cloud: GceOptions) -> compute_v1.Scheduling:
    """Return the scheduling; only some instances on demand without GPUs can migrate, maintenance stops the others.

    Instances that are placed close to each other cannot migrate.
    Instances on demand restart after maintenance, or after an error of their host. Each start begins the lifetime
    again, so that they do not restart if their cost is limited. The lifetime counts from each start:
    https://cloud.google.com/compute/docs/instances/limit-vm-runtime.
    """
    model = provisioning_model(cloud)
    migrates = model == STANDARD and can_migrate(cloud.machine_type) and not has_gpus(cloud)
    values = compute_v1.Scheduling(
        provisioning_model=model,
        on_host_maintenance="MIGRATE" if migrates and cloud.placement != COMPACT else "TERMINATE",
        automatic_restart=model == STANDARD and not cloud.max_cost_usd,
    )
    if cloud.delete_after_s:
        values.max_run_duration = compute_v1.Duration(seconds=cloud.delete_after_s)
    if cloud.delete_after_s or model in (SPOT, RESERVATION_BOUND):
        values.instance_termination_action = "DELETE"
    return values


def reservation_affinity(cloud: GceOptions) -> compute_v1.ReservationAffinity | None:
    """Return the reservation that instances use; Flex-start VMs cannot use any.

    Source: https://cloud.google.com/compute/docs/instances/reservations-consume.
    """
    if cloud.flex_start:
        return compute_v1.ReservationAffinity(consume_reservation_type="NO_RESERVATION")
    if not cloud.reservation:
        return None
    return compute_v1.ReservationAffinity(
        consume_reservation_type="SPECIFIC_RESERVATION",
        key="compute.googleapis.com/reservation-name",
        values=[cloud.reservation],
    )


OS_LOGIN = "enable-oslogin"
"""Metadata item that lets Google manage the accounts of an instance; its SSH keys in metadata then have no effect."""

IMAGE = "fleet-image"
"""Metadata item that lets an instance remove what belongs to it alone, so that its disk can become an image."""

SEAL: Mapping[str, str] = MappingProxyType(
    {"ssh-keys": "", "fleet-startup-script": "", "fleet-setup": "", IMAGE: "TRUE"}
)
"""Changes of metadata before an image is made; an empty value removes an item."""

STARTUP = "startup-script"
_SCRIPT = Path(__file__).with_name("startup.sh")


def ssh_keys(user: str, public_key: str) -> str:
    """Return the value of the metadata ``ssh-keys`` that lets the owner of `public_key` log in as `user`."""
    return f"{user}:{' '.join(public_key.split())}"


def scripts(cloud: GceOptions) -> dict[str, str]:
    """Return the metadata items with the scripts that the startup script runs as root; empty texts: none."""
    return {"fleet-startup-script": cloud.startup_script, "fleet-setup": cloud.setup}


def startup_script() -> str:
    """Return the startup script of all instances."""
    return _SCRIPT.read_text(encoding="utf-8")


def is_os_login(metadata: compute_v1.Metadata) -> bool:
    """Return whether the metadata of an instance or a project enables OS Login."""
    return next((item.value for item in metadata.items if item.key == OS_LOGIN), "").upper() == "TRUE"


def deadlines(cloud: GceOptions, now: float) -> dict[str, str]:
    """Return the metadata items with the deadlines of an instance that starts now, in seconds since the epoch."""
    after_s = {END_AT: cloud.end_after_s, STOP_AT: cloud.stop_after_s}
    return {key: str(round(now) + seconds if seconds else 0) for key, seconds in after_s.items()}


def items_of(resource: compute_v1.Instance) -> dict[str, str]:
    """Return the metadata items of an instance."""
    return {item.key: item.value for item in resource.metadata.items}


def metadata(items: Mapping[str, str], fingerprint: str | None = None) -> compute_v1.Metadata:
    """Return metadata with these items."""
    return compute_v1.Metadata(
        fingerprint=fingerprint, items=[compute_v1.Items(key=key, value=value) for key, value in items.items()]
    )


def metadata_items(cloud: GceOptions, public_key: str, now: float) -> dict[str, str]:
    """Return metadata with which only the fleet's own key logs in, and the guest agent publishes the host keys.

    With OS Login, the key is imported into a profile instead. `now` is the start of the instance, in seconds since
    the epoch.
    """
    return {
        **dict(split_pair(text, "--metadata") for text in cloud.metadata),
        **({} if cloud.os_login else {"ssh-keys": ssh_keys(cloud.ssh_user, public_key)}),
        "block-project-ssh-keys": "true",
        OS_LOGIN: str(cloud.os_login).upper(),
        "enable-guest-attributes": "TRUE",
        STARTUP: startup_script(),
        **deadlines(cloud, now),
        **({IDLE_TIMEOUT: str(cloud.idle_timeout_s)} if cloud.idle_timeout_s and not cloud.is_temporary else {}),
        **{key: text for key, text in scripts(cloud).items() if text},
    }


IAP_RANGE = "35.235.240.0/20"
"""Addresses from which Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding."""


def firewalls(fleet: Fleet, ssh_from: Sequence[str], *, project: str = "") -> list[compute_v1.Firewall]:
    """Return the bodies of the two rules of a fleet: for SSH, and for the traffic among its instances.

    Args:
        fleet: The fleet.
        ssh_from: Addresses that may use SSH, in CIDR notation; without external addresses, those of Identity-Aware
            Proxy are used instead.
        project: Project of the instances, if the network is in another one.
    """
    cloud, tag = fleet.cloud, fleet.stem
    common: dict[str, Any] = {
        "network": network_path(cloud.network),
        "description": fleet.mark(project),
        "direction": "INGRESS",
        "target_tags": [tag],
    }
    ssh = compute_v1.Firewall(
        **common,
        name=f"{tag}-ssh",
        allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=[str(cloud.ssh_port)])],
        source_ranges=ssh_from if cloud.external else [IAP_RANGE],
    )
    internal = compute_v1.Firewall(
        **common,
        name=f"{tag}-internal",
        allowed=[compute_v1.Allowed(I_p_protocol=protocol) for protocol in ("tcp", "udp", "icmp")],
        source_tags=[tag],
    )
    return [ssh, internal]


def network_interface(cloud: GceOptions, region: str) -> compute_v1.NetworkInterface:
    """Return the network interface of an instance in `region`; empty: the region is unknown."""
    host = network_of(cloud.network).project
    nat = compute_v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")
    return compute_v1.NetworkInterface(
        network=network_path(cloud.network),
        nic_type="GVNIC" if series_of(cloud.machine_type).gvnic else None,
        subnetwork=subnetwork_path(cloud.subnetwork, region, host) if cloud.subnetwork else None,
        access_configs=[nat] if cloud.external else [],
    )


def policy_name(fleet: Fleet) -> str:
    """Return the name of the placement policy of a fleet, the same in each region; empty: it needs none."""
    return f"{fleet.stem}-compact" if fleet.cloud.placement == COMPACT and fleet.spec.workers > 1 else ""


def placement_policy(fleet: Fleet) -> compute_v1.ResourcePolicy:
    """Return the placement policy of a fleet.

    Source: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies.
    """
    return compute_v1.ResourcePolicy(
        name=policy_name(fleet),
        description=fleet.mark(),
        group_placement_policy=compute_v1.ResourcePolicyGroupPlacementPolicy(collocation="COLLOCATED"),
    )


def disks(cloud: GceOptions, marks: Mapping[str, str]) -> list[compute_v1.AttachedDisk]:
    """Return the boot disk, which is deleted with its instance, and the Local SSDs that are attached.

    Those that come with the machine type are not listed: https://cloud.google.com/compute/docs/disks/add-local-ssd.
    `marks` are the labels of the boot disk.
    """
    boot = compute_v1.AttachedDiskInitializeParams(
        source_image=cloud.image, disk_size_gb=cloud.disk_gb, disk_type=cloud.disk_type, labels=dict(marks)
    )
    scratch = compute_v1.AttachedDiskInitializeParams(disk_type=LOCAL_SSD)
    return [
        compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=boot),
        *(
            compute_v1.AttachedDisk(type_="SCRATCH", interface="NVME", auto_delete=True, initialize_params=scratch)
            for _ in range(cloud.local_ssds)
        ),
    ]


def bulk_insert(fleet: Fleet, names: Collection[str], zone: str, now: float) -> compute_v1.BulkInsertInstanceResource:
    """Return the body of the one request that creates all instances with these names in a zone, or none.

    The time `now` is that of their start, in seconds since the epoch, from which their deadlines count.
    """
    return compute_v1.BulkInsertInstanceResource(
        count=len(names),
        min_count=len(names),
        instance_properties=properties(fleet, region_of(zone), now),
        per_instance_properties=dict.fromkeys(  # each `name` in it is output only
            names, compute_v1.BulkInsertInstanceResourcePerInstanceProperties()
        ),
    )


def properties(fleet: Fleet, region: str, now: float) -> compute_v1.InstanceProperties:
    """Return the properties that all instances of a fleet in a region have; `now` is as in `bulk_insert`."""
    cloud, policy = fleet.cloud, policy_name(fleet)
    given = dict(split_pair(text, "--label") for text in cloud.labels)
    marks = {**given, **labels(fleet.name, fleet.owner, fleet.user)}
    return compute_v1.InstanceProperties(
        machine_type=cloud.machine_type,
        description=fleet.mark(),
        labels=marks,
        tags=compute_v1.Tags(items=[fleet.stem, *cloud.tags]),
        disks=disks(cloud, marks),
        network_interfaces=[network_interface(cloud, region)],
        metadata=metadata(metadata_items(cloud, fleet.spec.public_key, now)),
        scheduling=scheduling(cloud),
        reservation_affinity=reservation_affinity(cloud),
        resource_policies=[policy] if policy else [],
        guest_accelerators=_accelerators(cloud),
        service_accounts=_service_accounts(cloud),
    )


def _accelerators(cloud: GceOptions) -> list[compute_v1.AcceleratorConfig]:
    """Return the attached GPUs; built-in GPUs come with the machine type and are not listed."""
    gpu = gpu_of(cloud)
    if not cloud.gpus or gpu is None or gpu.built_in:
        return []
    return [compute_v1.AcceleratorConfig(accelerator_type=cloud.gpu, accelerator_count=cloud.gpus)]


def _service_accounts(cloud: GceOptions) -> list[compute_v1.ServiceAccount]:
    if not cloud.scopes:
        return []
    return [compute_v1.ServiceAccount(email=cloud.service_account or "default", scopes=cloud.scopes)]


def single_inserts(
    fleet: Fleet, names: Iterable[str], zone: str, now: float, project: str
) -> list[compute_v1.Instance]:
    """Return the body of the request for each instance in a zone of a project.

    In a bulk request, types of machines, disks, and GPUs are names; here they are paths. The other arguments are as
    in `bulk_insert`.
    """
    region, wait_s = region_of(zone), fleet.cloud.wait_s
    body = from_json(compute_v1.Instance, to_json(properties(fleet, region, now)))
    body.machine_type = f"zones/{zone}/machineTypes/{body.machine_type}"
    for disk in body.disks:
        disk.initialize_params.disk_type = f"zones/{zone}/diskTypes/{disk.initialize_params.disk_type}"
    for gpu in body.guest_accelerators:
        gpu.accelerator_type = f"projects/{project}/zones/{zone}/acceleratorTypes/{gpu.accelerator_type}"
    policies = f"projects/{project}/regions/{region}/resourcePolicies"
    body.resource_policies = [f"{policies}/{name}" for name in body.resource_policies]
    if wait_s:
        body.params = compute_v1.InstanceParams(request_valid_for_duration=compute_v1.Duration(seconds=wait_s))
    return [compute_v1.Instance(body, name=name) for name in names]


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


def zone_of(resource: Any) -> str:
    """Return the name of the zone that a resource of a zone is in."""
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
    cloud = GceOptions(
        machine_type=machine_type,
        gpu=last(gpus.accelerator_type),
        gpus=gpus.accelerator_count,
        spot=model == SPOT,
        flex_start=model == FLEX_START,
        disk_gb=sum(disk.disk_size_gb for disk in resource.disks if disk.type_ != SCRATCH),
        disk_type=disk_type,
        external=any(interface.access_configs for interface in resource.network_interfaces),
    )
    return cloud if cloud.includes_local_ssds else replace(cloud, local_ssds=scratch)


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
