"""Cloud NAT, through which instances without external addresses reach the Internet; it belongs to Cloud Routers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.emulator.blueprint import relative
from tests.emulator.cloud import Call, Cloud, Instance

Json = dict[str, Any]
_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")
_ONLY_SECONDARY = ["LIST_OF_SECONDARY_IP_RANGES"]


@dataclass
class Routers:
    """The routers by project, region, and name."""

    routers: dict[tuple[str, str, str], Json] = field(default_factory=dict)

    def of(self, call: Call) -> dict[str, Json]:
        """Return the routers of a call's region by name."""
        scope = (call.path["project"], call.path["region"])
        return {name: router for (*place, name), router in self.routers.items() if tuple(place) == scope}

    def translate(self, interface: Json) -> bool:
        """Return whether a public NAT serves a network interface of an instance."""
        network, subnetwork = relative(interface["network"]), relative(interface["subnetwork"])
        region = subnetwork.split("/")[3]
        return any(
            _serves(nat, subnetwork)
            for (_, where, _), router in self.routers.items()
            for nat in router.get("nats", ())
            if where == region and relative(router["network"]) == network
        )


def _serves(nat: Json, subnetwork: str) -> bool:
    if nat.get("type", "PUBLIC") != "PUBLIC":
        return False
    primary = [each for each in nat.get("subnetworks", ()) if each.get("sourceIpRangesToNat") != _ONLY_SECONDARY]
    listed = {relative(each["name"]) for each in primary}
    return nat.get("sourceSubnetworkIpRangesToNat") in _ALL or subnetwork in listed


def router_body(cloud: Cloud, region: str, given: Json) -> Json:
    """Return a Router with the fields of a request in the region at this URL."""
    return {
        "kind": "compute#router",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        **given,
        "region": region,
        "selfLink": f"{region}/routers/{given['name']}",
    }


def add_nat(cloud: Cloud, project: str, region: str, network: str) -> None:
    """Let a NAT serve all subnetworks of a network in a region."""
    base = cloud.url_of(project)
    nats = [{"name": "nat", "sourceSubnetworkIpRangesToNat": _ALL[0], "natIpAllocateOption": "AUTO_ONLY"}]
    given = {"name": "nat", "network": f"{base}/global/networks/{network}", "nats": nats}
    cloud.part(Routers).routers[project, region, "nat"] = router_body(cloud, f"{base}/regions/{region}", given)


def reaches_internet(cloud: Cloud, instance: Instance) -> bool:
    """Return whether an instance has an external address, or a NAT."""
    return instance.blueprint.external or cloud.part(Routers).translate(instance.body["networkInterfaces"][0])
