"""The methods of addresses."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, already_exists, not_found
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.registry import method, starting

Json = dict[str, Any]


@method("compute.addresses.list")
def list_addresses(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    return page(cloud, call, [address for (where, _), address in cloud.addresses.items() if where == region])


@method("compute.addresses.aggregatedList")
def aggregated_addresses(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {"global": [], **{f"regions/{region}": [] for region in locations.REGIONS}}
    for (region, _), address in sorted(cloud.addresses.items()):
        scoped[f"regions/{region}"].append(address)
    return aggregated(cloud, call, scoped)


@starting("compute.addresses.insert")
def insert_address(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    name = call.body["name"]
    if (region, name) in cloud.addresses:
        raise already_exists(f"projects/{cloud.project}/regions/{region}/addresses/{name}")
    target = f"{cloud.base}/regions/{region}/addresses/{name}"
    made: Json = {
        "kind": "compute#address",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "name": name,
        "address": f"203.0.113.{len(cloud.addresses) + 1}",
        "addressType": "EXTERNAL",
        "networkTier": "PREMIUM",
        "status": "RESERVED",
        "region": f"{cloud.base}/regions/{region}",
        "description": call.body.get("description", ""),
        "labels": call.body.get("labels", {}),
        "selfLink": target,
    }

    def begin() -> Failure | None:
        cloud.addresses[region, name] = made
        return None

    return launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.addresses.delete")
def delete_address(cloud: Cloud, call: Call) -> Json:
    region, name = call.path["region"], call.path["address"]
    address = cloud.addresses.get((region, name))
    if address is None:
        raise not_found(f"projects/{cloud.project}/regions/{region}/addresses/{name}")

    def begin() -> Failure | None:
        cloud.addresses.pop((region, name), None)
        return None

    return launch(cloud, call, "delete", address["selfLink"], begin, address["id"])
