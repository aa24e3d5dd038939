"""Build the bodies of requests that create the resources of a fleet, as JSON of the REST API.

Fields are those of https://cloud.google.com/compute/docs/reference/rest/v1/instances/bulkInsert and
https://cloud.google.com/compute/docs/reference/rest/v1/firewalls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.gce.catalog.locations import region_of
from provision.gce.catalog.machines import gpu_of, has_gpus
from provision.gce.catalog.networks import network_of, network_path, subnetwork_path
from provision.gce.options import GceOptions
from provision.model import FleetSpec

IAP_RANGE = "35.235.240.0/20"
"""Addresses from which Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding."""

STOP_AT = "fleet-stop-at"
"""Metadata item with the time at which an instance powers off by itself, in seconds since the epoch; 0: never."""

_STOP_SCRIPT = Path(__file__).with_name("stop_at.sh")
_LABEL_LENGTH_MAX = 63
_MARK = re.compile(r"made by fleet for ([^ ,]+), owner ([^ ,]+), user (.*)")
_NOT_IN_LABELS = re.compile(r"[^a-z0-9_-]+", re.ASCII)


def stem(fleet: str, owner: str) -> str:
    """Return the network tag of a fleet, with which the names of its resources begin."""
    return f"{fleet}-{owner}"


def instance_name(fleet: str, owner: str, name: str) -> str:
    """Return the name on Compute Engine of the instance with the name `name` within the fleet."""
    return f"{stem(fleet, owner)}-{name}"


def label_value(text: str) -> str:
    """Return `text` as a valid label value: at most 63 lower-case letters, digits, hyphens, and underscores."""
    return _NOT_IN_LABELS.sub("-", text.lower()).strip("-")[:_LABEL_LENGTH_MAX].rstrip("-")


def labels(fleet: str, owner: str, user: str, index: int | None = None) -> dict[str, str]:
    """Return the labels of an instance and its disk, by which the resources of a fleet are listed.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory, 8 characters.
        user: Login and computer of the user, in any form.
        index: Index of the instance; None: for all instances of a bulk request, which have the same labels.
    """
    pairs = {"fleet": fleet, "fleet-owner": owner, "fleet-user": label_value(user)}
    return pairs if index is None else {**pairs, "fleet-index": str(index)}


def ssh_keys(user: str, public_key: str) -> str:
    """Return the value of the metadata ``ssh-keys`` that lets the owner of `public_key` log in as `user`."""
    return f"{user}:{' '.join(public_key.split())}"


def bulk_insert(
    spec: FleetSpec,
    names: Mapping[str, str],
    *,
    owner: str,
    user: str,
    zones: Sequence[str] | None,
    others: Sequence[str] = (),
    region: str = "",
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

    Raises:
        ValueError: the spec is of another provider, or names a subnetwork whose region is unknown.
    """
    cloud = GceOptions.of(spec.options)
    marks = labels(spec.name, owner, user)
    body: dict[str, Any] = {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "instanceProperties": {
            "machineType": cloud.machine_type,
            "description": mark(spec.name, owner, user),
            "labels": marks,
            "tags": {"items": [stem(spec.name, owner)]},
            "disks": [_boot_disk(cloud, marks)],
            "networkInterfaces": [_interface(cloud, region or (region_of(zones[0]) if zones else ""))],
            "metadata": {"items": _metadata(cloud, spec.public_key)},
            "scheduling": _scheduling(cloud),
            **_accelerators(cloud),
            **_service_accounts(cloud),
        },
        "perInstanceProperties": {name: {"name": name} for name in names.values()},
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


def mark(fleet: str, owner: str, user: str) -> str:
    """Return the description of a fleet's resources; it identifies firewall rules, which have no labels."""
    return f"made by fleet for {fleet}, owner {owner}, user {label_value(user)}"


def marked(description: str) -> tuple[str, str, str] | None:
    """Return the fleet, owner, and user in a description; None if the resource belongs to no fleet."""
    match = _MARK.fullmatch(description)
    return (match[1], match[2], match[3]) if match else None


def firewalls(fleet: str, owner: str, user: str, cloud: GceOptions, ssh_from: Sequence[str]) -> list[dict[str, Any]]:
    """Return the bodies of the two rules of a fleet: for SSH, and for the traffic among its instances.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory.
        user: Login and computer of the user, in any form.
        cloud: Options of the fleet.
        ssh_from: Addresses that may use SSH, in CIDR notation; without external addresses, those of Identity-Aware
            Proxy are used instead.
    """
    tag = stem(fleet, owner)
    common = {
        "network": network_path(cloud.network),
        "description": mark(fleet, owner, user),
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    ssh = {
        "name": f"{tag}-ssh",
        "allowed": [{"IPProtocol": "tcp", "ports": [str(cloud.ssh_port)]}],
        "sourceRanges": list(ssh_from) if cloud.external else [IAP_RANGE],
    }
    internal = {
        "name": f"{tag}-internal",
        "allowed": [{"IPProtocol": protocol} for protocol in ("tcp", "udp", "icmp")],
        "sourceTags": [tag],
    }
    return [{**common, **ssh}, {**common, **internal}]


def _boot_disk(cloud: GceOptions, marks: Mapping[str, str]) -> dict[str, Any]:
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": cloud.image,
            "diskSizeGb": str(cloud.disk_gb),
            "diskType": cloud.disk_type,
            "labels": dict(marks),
        },
    }


def _interface(cloud: GceOptions, region: str) -> dict[str, Any]:
    interface: dict[str, Any] = {"network": network_path(cloud.network)}
    if cloud.subnetwork:
        interface["subnetwork"] = subnetwork_path(cloud.subnetwork, region, network_of(cloud.network).project)
    if cloud.external:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface


def _metadata(cloud: GceOptions, public_key: str) -> list[dict[str, str]]:
    """Return metadata with which only the fleet's own key logs in, and the guest agent publishes the host keys."""
    items = {
        "ssh-keys": ssh_keys(cloud.ssh_user, public_key),
        "block-project-ssh-keys": "true",
        "enable-oslogin": "FALSE",
        "enable-guest-attributes": "TRUE",
        "startup-script": _STOP_SCRIPT.read_text(encoding="utf-8"),
        STOP_AT: "0",
    }
    return [{"key": key, "value": value} for key, value in items.items()]


def _scheduling(cloud: GceOptions) -> dict[str, Any]:
    """Return the scheduling; instances with GPUs and Spot VMs cannot migrate, so maintenance stops them."""
    stays = has_gpus(cloud) or cloud.spot
    scheduling: dict[str, Any] = {
        "provisioningModel": "SPOT" if cloud.spot else "STANDARD",
        "onHostMaintenance": "TERMINATE" if stays else "MIGRATE",
        "automaticRestart": False,
    }
    if cloud.max_duration_s:
        scheduling["maxRunDuration"] = {"seconds": str(cloud.max_duration_s)}
    if cloud.spot or cloud.max_duration_s:
        scheduling["instanceTerminationAction"] = "DELETE"
    return scheduling


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
