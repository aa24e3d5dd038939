"""Check that the network and the subnetwork exist, and that the caller may use them."""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.account import Account
from provision.gce.catalog.locations import regions_of
from provision.gce.catalog.networks import network_of, subnetwork_of, subnetwork_path
from provision.gce.checks.check import Check
from provision.gce.diagnosis.permissions import missing_permission
from provision.gce.options import GceOptions
from provision.gce.rest.api import Json
from provision.gce.rest.governance import permitted_on_subnetwork
from provision.gce.rest.resources import last
from provision.provider import ErrorKind, ProviderError
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
    network = api.network(cloud.network)
    regions = _regions(network, cloud)
    if not cloud.subnetwork and (host or not network.get("autoCreateSubnetworks")):
        raise _unset(cloud, host or api.project, regions)
    if not regions:
        list_them = ("gcloud", "compute", "networks", "subnets", "list", "--project", host or api.project)
        message = f"network {cloud.network} has no subnetwork {last(cloud.subnetwork) or 'in the requested regions'}"
        raise ProviderError(ErrorKind.USAGE, message, hint="select another: --subnet NAME", next_steps=[list_them])
    if host:
        path = subnetwork_path(cloud.subnetwork, regions[0], host)
        needed = {"compute.subnetworks.use", *(("compute.subnetworks.useExternalIp",) if cloud.external else ())}
        missing = sorted(needed - permitted_on_subnetwork(api, path, needed))
        if missing:
            inside = path.partition(f"projects/{host}/")[2]
            raise missing_permission(missing[0], host, doing="use the subnetwork", member=api.member(), path=inside)
    return f"{last(cloud.subnetwork) or cloud.network} in {counted(len(regions), 'region')}"


def _regions(network: Json, cloud: GceOptions) -> list[str]:
    """Return the requested regions in which the network has the subnetwork; without a request, all."""
    asked = regions_of(cloud.zones)
    given = subnetwork_of(cloud.subnetwork) if cloud.subnetwork else None
    regions = []
    for url in network.get("subnetworks", ()):
        _, region, _, name = str(url).rsplit("/", 3)
        fits = given is None or (given.name == name and given.region in ("", region))
        if fits and (not asked or region in asked):
            regions.append(region)
    return regions


def _unset(cloud: GceOptions, project: str, regions: Sequence[str]) -> ProviderError:
    return ProviderError(
        ErrorKind.USAGE,
        f"network {cloud.network} requires a subnetwork",
        cause="it has subnetworks in " + ", ".join(sorted(set(regions))[:5]) if regions else "",
        hint="select one: --subnet NAME",
        next_steps=[("gcloud", "compute", "networks", "subnets", "list", "--project", project)],
    )


NETWORK = Check("network", _network)
SUBNETWORK = Check("subnetwork", _subnetwork, requires=("API", "network"))
