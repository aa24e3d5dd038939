"""Checks of the network, of the access to instances, and of Identity-Aware Proxy."""

from __future__ import annotations

import shutil

from provision.gce.access import hosts, networks
from provision.gce.access.networks import check_rules, ssh_sources
from provision.gce.account import Account
from provision.gce.api.iam import permitted_on_subnetwork
from provision.gce.catalog.names import last, network_of, regions_of, subnetwork_path
from provision.gce.diagnosis import missing_permission
from provision.gce.options import GceOptions
from provision.model import FleetSpec
from provision.quantities import counted


def check_network(account: Account, cloud: GceOptions) -> str:
    """Return that the network exists."""
    account.api.network(cloud.network)
    return f"{cloud.network} exists"


def check_subnetwork(account: Account, cloud: GceOptions) -> str:
    """Return the subnetworks that instances would use, as a message.

    Raises:
        ApiError: the network, or the permissions, cannot be read.
        ProviderError: there is none, or the caller may not use it.
    """
    api, host = account.api, network_of(cloud.network).project
    regions = networks.check_subnetwork(api.network(cloud.network), cloud, api.project)
    if host:
        path = subnetwork_path(cloud.subnetwork, regions[0], host)
        needed = {"compute.subnetworks.use", *(("compute.subnetworks.useExternalIp",) if cloud.external else ())}
        missing = sorted(needed - permitted_on_subnetwork(api, path, needed))
        if missing:
            inside = path.partition(f"projects/{host}/")[2]
            raise missing_permission(missing[0], host, doing="use the subnetwork", member=api.member(), path=inside)
    return f"{last(cloud.subnetwork) or cloud.network} in {counted(len(regions), 'region')}"


def check_address(account: Account, cloud: GceOptions) -> str:
    """Return the addresses that may use SSH."""
    sources = ssh_sources(account, cloud)
    return f"SSH would be open to {', '.join(sources)}" if sources else "not required: no firewall rule uses it"


def check_firewall(account: Account, cloud: GceOptions) -> str:
    """Return that no rule of the network is known to deny SSH."""
    fleet = account.fleet(FleetSpec("default", "gce", 1, options=cloud))
    check_rules(account, fleet, ssh_sources(account, cloud))
    return "no rule of the network is known to deny SSH"


_EXTERNAL = "not required: instances have external addresses"


def check_gcloud(_account: Account, cloud: GceOptions) -> str:
    """Return the gcloud that opens tunnels, which is logged in."""
    if cloud.external:
        gcloud = shutil.which("gcloud")
        return f"{gcloud}, for --iap" if gcloud else "not installed (only required for --iap)"
    hosts.access_token()
    return f"{hosts.find_gcloud()} is logged in"


def check_tunnels(account: Account, cloud: GceOptions) -> str:
    """Return the account that can open tunnels."""
    if cloud.external:
        return _EXTERNAL
    return f"{hosts.check_tunnels(account) or 'the account of gcloud'} can open tunnels"


def check_nat(account: Account, cloud: GceOptions) -> str:
    """Return the regions in which Cloud NAT serves the instances, as a message.

    Raises:
        ApiError: the routers cannot be listed.
        ProviderError: it serves none of the requested regions.
    """
    if cloud.external:
        return _EXTERNAL
    asked, served = regions_of(cloud.zones), networks.regions_with_nat(account, cloud)
    usable = served & asked if asked else served
    if not usable:
        raise networks.missing_nat(account, cloud, min(asked, default="us-central1"))
    return f"instances in {counted(len(usable), 'region')} can download packages"
