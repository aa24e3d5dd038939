"""Bodies of the requests that make a fleet, in REST's own JSON; pure.

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
from provision.gce.options import GceOptions, options_of
from provision.model import FleetSpec

IAP_RANGE = "35.235.240.0/20"
"""From where Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding."""

STOP_AT = "fleet-stop-at"
"""Metadata item with the time at which an instance powers off by itself, in seconds since the epoch; 0: never."""

_STOP_SCRIPT = Path(__file__).with_name("stop_at.sh")
_LABEL_LENGTH_MAX = 63
_MARK = re.compile(r"made by fleet for ([^ ,]+), owner ([^ ,]+), user (.*)")
_NOT_IN_LABELS = re.compile(r"[^a-z0-9_-]+", re.ASCII)


def stem(fleet: str, owner: str) -> str:
    """Network tag of a fleet, and the beginning of the names of all that is made for it."""
    return f"{fleet}-{owner}"


def instance_name(fleet: str, owner: str, name: str) -> str:
    """What Compute Engine calls the instance that the fleet calls `name`."""
    return f"{stem(fleet, owner)}-{name}"


def label_value(text: str) -> str:
    """`text` with the characters that a label may have: lower case, digits, hyphens and underscores, at most 63."""
    return _NOT_IN_LABELS.sub("-", text.lower()).strip("-")[:_LABEL_LENGTH_MAX].rstrip("-")


def labels(fleet: str, owner: str, user: str, index: int | None = None) -> dict[str, str]:
    """Labels of an instance and its disk, by which a fleet is found again.

    Args:
        fleet: Name of the fleet.
        owner: Who keeps the fleet's state, 8 characters.
        user: Login and computer of the user, in any form.
        index: Of the instance; None: of all instances of a bulk request, which gives each the same labels.
    """
    pairs = {"fleet": fleet, "fleet-owner": owner, "fleet-user": label_value(user)}
    return pairs if index is None else {**pairs, "fleet-index": str(index)}


def ssh_keys(user: str, public_key: str) -> str:
    """The value of the metadata ``ssh-keys`` that lets the owner of `public_key` log in as `user`."""
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
    """Body of the one request that makes all of `names`, or none.

    Args:
        spec: The fleet; its cloud is resolved.
        names: Our names of the instances, and what Compute Engine is to call them.
        owner: Who keeps the fleet's state.
        user: Login and computer of the user.
        zones: For a region's bulkInsert: zones from which Compute Engine chooses one; None: for that of a zone.
        others: For a region's bulkInsert: the other zones of the region, which Compute Engine must not choose.
        region: Where they will stand; needed for that of a zone where the spec names a subnetwork.

    Raises:
        ValueError: the spec has no cloud, or names a subnetwork and nobody says of which region.
    """
    cloud = options_of(spec)
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
    """Description of what a fleet has; firewall rules have no labels, and are found again by it."""
    return f"made by fleet for {fleet}, owner {owner}, user {label_value(user)}"


def marked(description: str) -> tuple[str, str, str] | None:
    """Fleet, owner and user of what has this description; None: no fleet made it."""
    match = _MARK.fullmatch(description)
    return (match[1], match[2], match[3]) if match else None


def firewalls(fleet: str, owner: str, user: str, cloud: GceOptions, ssh_from: Sequence[str]) -> list[dict[str, Any]]:
    """Bodies of the two rules of a fleet: who may use SSH, and that its instances reach each other.

    Args:
        fleet: Name of the fleet.
        owner: Who keeps the fleet's state.
        user: Login and computer of the user, in any form.
        cloud: What it rents.
        ssh_from: Addresses that may use SSH, in CIDR notation; without external addresses it is Identity-Aware Proxy
            instead.
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
    """Only the fleet's own key logs in, and the guest agent publishes the host keys."""
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
    """An instance with GPUs, or one on spot, cannot move to another computer: it is stopped."""
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
    """Only those that are attached: the others come with the machine type."""
    gpu = gpu_of(cloud)
    if not cloud.gpus or gpu is None or gpu.built_in:
        return {}
    return {"guestAccelerators": [{"acceleratorType": cloud.gpu, "acceleratorCount": cloud.gpus}]}


def _service_accounts(cloud: GceOptions) -> dict[str, Any]:
    if not cloud.scopes:
        return {}
    return {"serviceAccounts": [{"email": cloud.service_account or "default", "scopes": list(cloud.scopes)}]}
