"""Check that the network and the subnetwork exist, and that the caller may use them."""

from __future__ import annotations

from provision.gce.access.subnetworks import check_subnetwork
from provision.gce.account import Account
from provision.gce.catalog.networks import network_of, subnetwork_path
from provision.gce.checks.check import Check
from provision.gce.diagnosis.permissions import missing_permission
from provision.gce.options import GceOptions
from provision.gce.rest.governance import permitted_on_subnetwork
from provision.gce.rest.resources import last
from provision.quantities import counted


def _network(account: Account, cloud: GceOptions) -> str:
    account.api.network(cloud.network)
    return f"{cloud.network} exists"


def _subnetwork(account: Account, cloud: GceOptions) -> str:
    """Return the subnetworks that instances would use, as a message.

    Raises:
        ApiError: the network, or the permissions, cannot be read.
        ProviderError: there is none, or the caller may not use it.
    """
    api, host = account.api, network_of(cloud.network).project
    regions = check_subnetwork(api.network(cloud.network), cloud, api.project)
    if host:
        path = subnetwork_path(cloud.subnetwork, regions[0], host)
        needed = {"compute.subnetworks.use", *(("compute.subnetworks.useExternalIp",) if cloud.external else ())}
        missing = sorted(needed - permitted_on_subnetwork(api, path, needed))
        if missing:
            inside = path.partition(f"projects/{host}/")[2]
            raise missing_permission(missing[0], host, doing="use the subnetwork", member=api.member(), path=inside)
    return f"{last(cloud.subnetwork) or cloud.network} in {counted(len(regions), 'region')}"


NETWORK = Check("network", _network)
SUBNETWORK = Check("subnetwork", _subnetwork, requires=("API", "network"))
