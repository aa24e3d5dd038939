"""Check that the network has the subnetwork of the instances."""

from __future__ import annotations

from provision.gce.catalog.locations import regions_of
from provision.gce.catalog.networks import network_of, subnetwork_of
from provision.gce.options import GceOptions
from provision.gce.rest.api import Json
from provision.gce.rest.resources import last
from provision.provider import ErrorKind, ProviderError


def check_subnetwork(network: Json, cloud: GceOptions, project: str) -> list[str]:
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
    if not cloud.subnetwork and (host or not network.get("autoCreateSubnetworks")):
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
