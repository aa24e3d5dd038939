"""Subnetworks of the instances, and Cloud NAT, without which instances without external addresses download nothing.

Source: https://cloud.google.com/nat/docs/overview, and the schemas RouterNat and RouterNatSubnetworkToNat of the
discovery document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.api.messages import ApiError
from provision.gce.catalog.machines import ARM_IMAGE, CPU_IMAGE, GPU_IMAGE
from provision.gce.catalog.names import last, network_of, region_of, regions_of, subnetwork_of
from provision.gce.options import GceOptions, root_scripts
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError


def check_subnetwork(network: compute_v1.Network, cloud: GceOptions, project: str) -> list[str]:
    """Return the requested regions in which the network has the subnetwork; without a request, all of them.

    Args:
        network: The network, as the API returns it.
        cloud: Options of the instances.
        project: The project of the instances.

    Raises:
        ProviderError: there is none, or the user must select one.
    """
    host, regions = network_of(cloud.network).project, _regions(network, cloud)
    list_them = ("gcloud", "compute", "networks", "subnets", "list", "--project", host or project)
    if not cloud.subnetwork and (host or not network.auto_create_subnetworks):
        raise ProviderError(
            ErrorKind.USAGE,
            f"network {cloud.network} requires a subnetwork",
            cause="it has subnetworks in " + ", ".join(sorted(set(regions))[:5]) if regions else "",
            hint="select one: --subnet NAME",
            next_steps=[list_them],
        )
    if not regions:
        where = f" in {', '.join(sorted(regions_of(cloud.zones)))}" if cloud.zones else ""
        message = f"network {cloud.network} has no subnetwork {last(cloud.subnetwork)}".rstrip() + where
        raise ProviderError(ErrorKind.USAGE, message, hint="select another: --subnet NAME", next_steps=[list_them])
    return regions


def _regions(network: compute_v1.Network, cloud: GceOptions) -> list[str]:
    """Return the requested regions in which the network has the subnetwork; without a request, all."""
    asked = regions_of(cloud.zones)
    given = subnetwork_of(cloud.subnetwork) if cloud.subnetwork else None
    regions = []
    for url in network.subnetworks:
        _, region, _, name = url.rsplit("/", 3)
        fits = given is None or (given.name == name and given.region in ("", region))
        if fits and (not asked or region in asked):
            regions.append(region)
    return regions


_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")
_ONLY_SECONDARY = ["LIST_OF_SECONDARY_IP_RANGES"]
"""Ranges of a subnetwork that do not include its primary one, which instances use."""
_ROUTER = "fleet-nat"

Offered = Mapping[str, Sequence[str]]
"""Zones by region."""


def is_required(spec: FleetSpec, cloud: GceOptions) -> bool:
    """Return whether instances download packages and have no external address.

    If the user gave a package index or a proxy, it may be in the network. If the user gave an image or scripts for
    root, these may have the packages, or another package index.
    """
    is_given = cloud.image not in (ARM_IMAGE, CPU_IMAGE, GPU_IMAGE) or bool(root_scripts(cloud))
    is_inside = bool(spec.index_url or spec.pip_proxy)
    return bool(spec.packages) and not cloud.external and not is_given and not is_inside


def regions_with_nat(account: Account, cloud: GceOptions) -> frozenset[str]:
    """Return the regions in which Cloud NAT serves the instances.

    Raises:
        ApiError: the call failed, for example because the caller may not list the routers.
    """
    network = network_of(cloud.network)
    routers = account.api.routers(account.host_project)
    subnetwork = subnetwork_of(cloud.subnetwork).name or network.name  # in auto mode, it has the network's name
    return frozenset(
        last(router.region)
        for router in routers
        if last(router.network) == network.name and any(_serves(nat, subnetwork) for nat in router.nats)
    )


def _serves(nat: compute_v1.RouterNat, subnetwork: str) -> bool:
    """Return whether a NAT translates to public addresses, and serves the instances of a subnetwork of its region."""
    if (nat.type_ or "PUBLIC") != "PUBLIC":
        return False
    primary = [each for each in nat.subnetworks if list(each.source_ip_ranges_to_nat) != _ONLY_SECONDARY]
    listed = {last(each.name) for each in primary}
    return nat.source_subnetwork_ip_ranges_to_nat in _ALL or subnetwork in listed


def with_nat(account: Account, spec: FleetSpec, cloud: GceOptions, offered: Offered) -> Offered:
    """Return the regions in which the instances can download the packages of a fleet, of those in `offered`.

    These are all regions if it is unknown which have Cloud NAT, because the caller may not list the routers.

    Raises:
        ApiError: a call failed.
        ProviderError: none of the requested regions has Cloud NAT.
    """
    asked = regions_of(cloud.zones) or set(offered)
    zones = [zone for region in sorted(asked) for zone in offered.get(region, ())]
    if not zones or not is_required(spec, cloud):
        return offered
    try:
        served = regions_with_nat(account, cloud)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return offered
    if not served & asked:
        cheapest = min(zones, key=lambda zone: account.prices.usd_h(cloud, zone) or math.inf)
        raise missing_nat(account, cloud, region_of(cheapest))
    return {region: zones for region, zones in offered.items() if region in served}


def missing_nat(account: Account, cloud: GceOptions, region: str) -> ProviderError:
    """Return the error that no region has Cloud NAT, with the commands that create it in one."""
    name, project = network_of(cloud.network).name, account.host_project or account.api.project
    common = ("--region", region, "--project", project)
    addresses = ("--auto-allocate-nat-external-ips", "--nat-all-subnet-ip-ranges")
    return ProviderError(
        ErrorKind.MISSING,
        f"instances without external addresses cannot download packages: network {name} has no Cloud NAT in the "
        "requested regions",
        cause="pip on the instances connects to the package index directly",
        hint="create Cloud NAT in a region, or select a package index in the network (--index-url), or an image with "
        "the packages (--image, --python)",
        next_steps=[
            ("gcloud", "compute", "routers", "create", _ROUTER, "--network", name, *common),
            ("gcloud", "compute", "routers", "nats", "create", _ROUTER, "--router", _ROUTER, *addresses, *common),
        ],
    )
