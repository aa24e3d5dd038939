"""The request that creates all instances of a fleet, or none.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/instances/bulkInsert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.gce.catalog.locations import region_of
from provision.gce.catalog.machines import gpu_of
from provision.gce.options import GceOptions
from provision.gce.rest.bodies.disks import boot_disk, local_ssds
from provision.gce.rest.bodies.labels import labels, mark, stem
from provision.gce.rest.bodies.metadata import metadata_items
from provision.gce.rest.bodies.network import network_interface
from provision.gce.rest.bodies.placement import resource_policies
from provision.gce.rest.bodies.scheduling import reservation_affinity, scheduling
from provision.model import FleetSpec
from provision.options import split_pair


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
) -> dict[str, Any]:
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
    body: dict[str, Any] = {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "instanceProperties": properties(spec, owner, user, region, now),
        "perInstanceProperties": {name: {} for name in names.values()},  # each `name` in it is output only
    }
    if zones is not None:
        body["locationPolicy"] = {
            "targetShape": "ANY_SINGLE_ZONE",
            "locations": {
                **{f"zones/{zone}": {"preference": "ALLOW"} for zone in zones},
                **{f"zones/{zone}": {"preference": "DENY"} for zone in others},
            },
        }
    return body


def properties(spec: FleetSpec, owner: str, user: str, region: str, now: float) -> dict[str, Any]:
    """Return the properties that all instances of a fleet have, as InstanceProperties.

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
    return {
        "machineType": cloud.machine_type,
        "description": mark(spec.name, owner, user),
        "labels": marks,
        "tags": {"items": [stem(spec.name, owner), *cloud.tags]},
        "disks": [boot_disk(cloud, marks), *local_ssds(cloud)],
        "networkInterfaces": [network_interface(cloud, region)],
        "metadata": {"items": metadata_items(cloud, spec.public_key, now)},
        "scheduling": scheduling(cloud, now),
        **reservation_affinity(cloud),
        **resource_policies(spec, owner),
        **_accelerators(cloud),
        **_service_accounts(cloud),
    }


def _accelerators(cloud: GceOptions) -> dict[str, Any]:
    """Return the attached GPUs; built-in GPUs come with the machine type and are not listed."""
    gpu = gpu_of(cloud)
    if not cloud.gpus or gpu is None or gpu.built_in:
        return {}
    return {"guestAccelerators": [{"acceleratorType": cloud.gpu, "acceleratorCount": cloud.gpus}]}


def _service_accounts(cloud: GceOptions) -> dict[str, Any]:
    if not cloud.scopes:
        return {}
    return {"serviceAccounts": [{"email": cloud.service_account or "default", "scopes": list(cloud.scopes)}]}
