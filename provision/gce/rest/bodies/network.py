"""Network interfaces and firewall rules.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/firewalls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from provision.gce.catalog.networks import network_of, network_path, subnetwork_path
from provision.gce.catalog.series import series_of
from provision.gce.options import GceOptions
from provision.gce.rest.bodies.labels import mark, stem

IAP_RANGE = "35.235.240.0/20"
"""Addresses from which Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding."""


def firewalls(
    fleet: str, owner: str, user: str, cloud: GceOptions, ssh_from: Sequence[str], *, project: str = ""
) -> list[dict[str, Any]]:
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
    common = {
        "network": network_path(cloud.network),
        "description": mark(fleet, owner, user, project),
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


def network_interface(cloud: GceOptions, region: str) -> dict[str, Any]:
    """Return the network interface of an instance in `region`; empty: the region is unknown."""
    interface: dict[str, Any] = {"network": network_path(cloud.network)}
    if series_of(cloud.machine_type).gvnic:
        interface["nicType"] = "GVNIC"
    if cloud.subnetwork:
        interface["subnetwork"] = subnetwork_path(cloud.subnetwork, region, network_of(cloud.network).project)
    if cloud.external:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface
