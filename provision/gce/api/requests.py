"""Bodies of the requests that create instances, firewall rules, and placement policies.

Source: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.cloud import compute_v1

from provision.gce.api.messages import from_json, to_json
from provision.gce.catalog.gpus import RESERVATION_BOUND, SPOT, STANDARD
from provision.gce.catalog.machines import COMPACT, can_migrate, gpu_of, has_gpus, provisioning_model, series_of
from provision.gce.catalog.names import labels, mark, network_of, network_path, region_of, stem, subnetwork_path
from provision.gce.options import END_AT, IDLE_TIMEOUT, LOCAL_SSD, LOCAL_SSD_PATH, STOP_AT, GceOptions
from provision.model import FleetSpec
from provision.options import split_pair

DISCARD_LOCAL_SSDS = compute_v1.SchedulingOnInstanceStopAction(discard_local_ssd=True)
"""Field that instances with Local SSDs need if they are stopped at their end.

Source: https://cloud.google.com/sdk/gcloud/reference/compute/instances/create
(``--discard-local-ssds-at-termination-timestamp``).
"""


def scheduling(cloud: GceOptions, now: float) -> compute_v1.Scheduling:
    """Return the scheduling; only some instances on demand without GPUs can migrate, maintenance stops the others.

    Instances that are placed close to each other cannot migrate.
    Instances on demand restart after maintenance, or after an error of their host. Each start begins the lifetime
    again, so that they do not restart if their cost is limited. `now` is as in `limit_run`.
    """
    model = provisioning_model(cloud)
    migrates = model == STANDARD and can_migrate(cloud.machine_type) and not has_gpus(cloud)
    values = compute_v1.Scheduling(
        provisioning_model=model,
        on_host_maintenance="MIGRATE" if migrates and cloud.placement != COMPACT else "TERMINATE",
        automatic_restart=model == STANDARD and not cloud.max_cost_usd,
    )
    if cloud.delete_after_s:
        limit_run(values, cloud.delete_after_s, now, is_fixed=cloud.has_fixed_end)
    if cloud.delete_after_s or model in (SPOT, RESERVATION_BOUND):
        values.instance_termination_action = "STOP" if cloud.unattended else "DELETE"
    if cloud.delete_after_s and cloud.unattended and cloud.has_local_ssds:
        values.on_instance_stop_action = DISCARD_LOCAL_SSDS
    return values


def limit_run(values: compute_v1.Scheduling, seconds: int, now: float, *, is_fixed: bool) -> None:
    """Set the end of an instance; a later start does not move a fixed one, after which a start is refused.

    Source: https://cloud.google.com/compute/docs/instances/limit-vm-runtime.

    Args:
        values: The scheduling.
        seconds: Its lifetime.
        now: Time of its start, in seconds since the epoch.
        is_fixed: The lifetime counts from `now`; otherwise from each start.
    """
    if is_fixed:
        end = datetime.fromtimestamp(now + seconds, timezone.utc)
        values.termination_time = end.isoformat(timespec="seconds")
    else:
        values.max_run_duration = compute_v1.Duration(seconds=seconds)


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

RESTARTS = "fleet-restarts"
"""Metadata item with the URL of the API with which hosts start each other again, see train.agent.peers.revive."""

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


def runs_scripts(startup: str, cloud: GceOptions) -> bool:
    """Return whether a startup script, possibly of an older version, runs the items of `scripts` and mounts disks."""
    mounted = [LOCAL_SSD_PATH] if cloud.has_local_ssds else []
    return all(item in startup for item in [*scripts(GceOptions()), *mounted])


def is_os_login(metadata: compute_v1.Metadata) -> bool:
    """Return whether the metadata of an instance or a project enables OS Login."""
    return next((item.value for item in metadata.items if item.key == OS_LOGIN), "").upper() == "TRUE"


def deadlines(cloud: GceOptions, now: float) -> dict[str, str]:
    """Return the metadata items with the deadlines of an instance that starts now, in seconds since the epoch."""
    after_s = {END_AT: cloud.end_after_s, STOP_AT: cloud.stop_after_s}
    return {key: str(round(now) + seconds if seconds else 0) for key, seconds in after_s.items()}


def restarts(cloud: GceOptions) -> dict[str, str]:
    """Return the metadata item with which the hosts start each other again, if the options request that."""
    return {RESTARTS: cloud.endpoint or "https://compute.googleapis.com"} if cloud.unattended else {}


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
        **restarts(cloud),
        **({IDLE_TIMEOUT: str(cloud.idle_timeout_s)} if cloud.idle_timeout_s and not cloud.is_temporary else {}),
        **{key: text for key, text in scripts(cloud).items() if text},
    }


IAP_RANGE = "35.235.240.0/20"
"""Addresses from which Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding."""


def firewalls(
    fleet: str, owner: str, user: str, cloud: GceOptions, ssh_from: Sequence[str], *, project: str = ""
) -> list[compute_v1.Firewall]:
    """Return the bodies of the two rules of a fleet: for SSH, and for the traffic among its instances.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory.
        user: Login and computer of the user, in any form.
        cloud: Options of the fleet.
        ssh_from: Addresses that may use SSH, in CIDR notation; without external addresses, those of Identity-Aware
            Proxy are used instead.
        project: Project of the instances, if the network is in another one.
    """
    tag = stem(fleet, owner)
    common: dict[str, Any] = {
        "network": network_path(cloud.network),
        "description": mark(fleet, owner, user, project),
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


def policy_name(spec: FleetSpec, owner: str) -> str:
    """Return the name of the placement policy of a fleet, the same in each region; empty: it needs none."""
    is_compact = GceOptions.of(spec.options).placement == COMPACT and spec.workers > 1
    return f"{stem(spec.name, owner)}-compact" if is_compact else ""


def placement_policy(spec: FleetSpec, owner: str, user: str) -> compute_v1.ResourcePolicy:
    """Return the placement policy of a fleet.

    Source: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies.
    """
    return compute_v1.ResourcePolicy(
        name=policy_name(spec, owner),
        description=mark(spec.name, owner, user),
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


def bulk_insert(
    spec: FleetSpec,
    names: Mapping[str, str],
    *,
    owner: str,
    user: str,
    zones: Sequence[str] | None,
    others: Sequence[str] = (),
    region: str = "",
    now: float,
) -> compute_v1.BulkInsertInstanceResource:
    """Return the body of the one request that creates all of `names`, or none.

    Args:
        spec: The fleet; its options are resolved.
        names: Names on Compute Engine by the names within the fleet.
        owner: ID of the state directory.
        user: Login and computer of the user.
        zones: For bulkInsert in a region: zones from which Compute Engine chooses one; None: bulkInsert in a zone.
        others: For bulkInsert in a region: the other zones of the region, which Compute Engine must not choose.
        region: Region of the instances; required for bulkInsert in a zone if the spec names a subnetwork.
        now: Time of their start, in seconds since the epoch, from which their deadlines count.

    Raises:
        ValueError: the spec is of another provider, or names a subnetwork whose region is unknown.
    """
    region = region or (region_of(zones[0]) if zones else "")
    body = compute_v1.BulkInsertInstanceResource(
        count=len(names),
        min_count=len(names),
        instance_properties=properties(spec, owner, user, region, now),
        per_instance_properties=dict.fromkeys(  # each `name` in it is output only
            names.values(), compute_v1.BulkInsertInstanceResourcePerInstanceProperties()
        ),
    )
    if zones is not None:
        preferences = {**dict.fromkeys(zones, "ALLOW"), **dict.fromkeys(others, "DENY")}
        body.location_policy = compute_v1.LocationPolicy(
            target_shape="ANY_SINGLE_ZONE",
            locations={
                f"zones/{zone}": compute_v1.LocationPolicyLocation(preference=preference)
                for zone, preference in preferences.items()
            },
        )
    return body


def properties(spec: FleetSpec, owner: str, user: str, region: str, now: float) -> compute_v1.InstanceProperties:
    """Return the properties that all instances of a fleet have.

    Args:
        spec: The fleet; its options are resolved.
        owner: ID of the state directory.
        user: Login and computer of the user.
        region: Region of the instances; empty: unknown.
        now: Time of their start, in seconds since the epoch, from which their deadlines count.

    Raises:
        ValueError: the spec is of another provider, or names a subnetwork whose region is unknown.
    """
    cloud = GceOptions.of(spec.options)
    marks = {**dict(split_pair(text, "--label") for text in cloud.labels), **labels(spec.name, owner, user)}
    policy = policy_name(spec, owner)
    return compute_v1.InstanceProperties(
        machine_type=cloud.machine_type,
        description=mark(spec.name, owner, user),
        labels=marks,
        tags=compute_v1.Tags(items=[stem(spec.name, owner), *cloud.tags]),
        disks=disks(cloud, marks),
        network_interfaces=[network_interface(cloud, region)],
        metadata=metadata(metadata_items(cloud, spec.public_key, now)),
        scheduling=scheduling(cloud, now),
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
    spec: FleetSpec, names: Iterable[str], *, owner: str, user: str, project: str, zone: str, now: float
) -> list[compute_v1.Instance]:
    """Return the body of the request for each instance in a zone.

    In a bulk request, types of machines, disks, and GPUs are names; here they are paths.

    Args:
        spec: The fleet; its options are resolved.
        names: Names on Compute Engine.
        owner: ID of the state directory.
        user: Login and computer of the user.
        project: Project of the instances.
        zone: Zone of the instances.
        now: Time of their start, in seconds since the epoch, from which their deadlines count.
    """
    cloud = GceOptions.of(spec.options)
    body = from_json(compute_v1.Instance, to_json(properties(spec, owner, user, region_of(zone), now)))
    body.machine_type = f"zones/{zone}/machineTypes/{body.machine_type}"
    for disk in body.disks:
        disk.initialize_params.disk_type = f"zones/{zone}/diskTypes/{disk.initialize_params.disk_type}"
    for gpu in body.guest_accelerators:
        gpu.accelerator_type = f"projects/{project}/zones/{zone}/acceleratorTypes/{gpu.accelerator_type}"
    policies = f"projects/{project}/regions/{region_of(zone)}/resourcePolicies"
    body.resource_policies = [f"{policies}/{name}" for name in body.resource_policies]
    if cloud.wait_s:
        body.params = compute_v1.InstanceParams(request_valid_for_duration=compute_v1.Duration(seconds=cloud.wait_s))
    return [compute_v1.Instance(body, name=name) for name in names]
