"""The methods of networks and subnetworks."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import Blueprint, last, project_of
from tests.emulator.catalog import locations, networks
from tests.emulator.cloud import Call, Cloud
from tests.emulator.creation import on_create
from tests.emulator.failures import forbidden, invalid, not_found
from tests.emulator.firewall import Policies
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name
from tests.emulator.registry import method

Json = dict[str, Any]


@method("compute.networks.get")
def get_network(cloud: Cloud, call: Call) -> Json:
    project = call.path["project"]
    name = existing_name(cloud, call, "network", cloud.networks_of(project), "global/networks")
    return networks.network_body(cloud.url_of(project), name)


@method("compute.networks.list")
def list_networks(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [networks.network_body(cloud.base, name) for name in cloud.networks])


@method("compute.networks.getEffectiveFirewalls")
def get_effective_firewalls(cloud: Cloud, call: Call) -> Json:
    network = get_network(cloud, call)["selfLink"]
    rules = [rule for rule in cloud.firewalls.values() if rule["network"] == network]
    return {"firewalls": rules, "firewallPolicys": cloud.part(Policies).policies}


@method("compute.subnetworks.get")
def get_subnetwork(cloud: Cloud, call: Call) -> Json:
    project, region = call.path["project"], existing_name(cloud, call, "region", locations.REGIONS, "regions")
    name = existing_name(cloud, call, "subnetwork", cloud.networks_of(project), f"regions/{region}/subnetworks")
    return networks.subnetwork_body(cloud.url_of(project), region, name)


@method("compute.subnetworks.list")
def list_subnetworks(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    return page(cloud, call, _subnetworks(cloud, region))


@method("compute.subnetworks.aggregatedList")
def aggregated_subnetworks(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"regions/{region}": _subnetworks(cloud, region) for region in locations.REGIONS})


@method("compute.subnetworks.testIamPermissions")
def test_subnetwork_permissions(cloud: Cloud, call: Call) -> Json:
    project, region = call.path["project"], existing_name(cloud, call, "region", locations.REGIONS, "regions")
    existing_name(cloud, call, "resource", cloud.networks_of(project), f"regions/{region}/subnetworks")
    denied = cloud.denied
    asked = call.body.get("permissions", [])
    return {"permissions": [name for name in asked if not denied & {name, f"{project}:{name}"}]}


def _subnetworks(cloud: Cloud, region: str) -> list[Json]:
    return [networks.subnetwork_body(cloud.base, region, name) for name in cloud.networks]


@on_create
def check_interfaces(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal unless all networks and subnetworks of an instance exist and belong together."""
    for interface in blueprint.body["networkInterfaces"]:
        network = cloud.network(interface["network"]) if interface.get("network") else ""
        subnetwork = interface.get("subnetwork", "")
        if not subnetwork:
            if project_of(network) not in ("", cloud.project):
                raise invalid("resource.networkInterfaces[0].subnetwork", "", "A shared network needs a subnetwork.")
            if network and not networks.is_automatic(last(network)):
                why = "Subnetwork should be specified for custom subnetmode network"
                raise invalid("resource.networkInterfaces[0]", f"{{ 'network': '{network}' }}", why)
            continue
        project = project_of(subnetwork) or cloud.project
        if last(subnetwork) not in cloud.networks_of(project):
            raise not_found(f"projects/{project}/regions/{blueprint.region}/subnetworks/{last(subnetwork)}")
        for permission in ("use", *(("useExternalIp",) if interface.get("accessConfigs") else ())):
            if f"{project}:compute.subnetworks.{permission}" in cloud.denied:
                path = f"projects/{project}/regions/{blueprint.region}/subnetworks/{last(subnetwork)}"
                raise forbidden(f"compute.subnetworks.{permission}", path)
        if network and project_of(network) != project:
            raise invalid("resource.networkInterfaces[0].subnetwork", subnetwork, "It is not of the network.")
