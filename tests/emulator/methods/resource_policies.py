"""The methods of resource policies, of which only compact placement policies are emulated.

Source: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.emulator.blueprint import Blueprint, last, relative
from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.creation import on_create
from tests.emulator.failures import Failure, already_exists, bad_request, in_use, not_found
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.registry import method, starting

Json = dict[str, Any]


@dataclass
class Policies:
    """The resource policies of the project, by region and name."""

    by_name: dict[tuple[str, str], Json] = field(default_factory=dict)


@on_create
def check_policies(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if a policy of an instance does not exist, or does not support the instance."""
    for reference in blueprint.body.get("resourcePolicies", ()):
        name = last(reference)
        if (blueprint.region, name) not in cloud.part(Policies).by_name:
            raise not_found(f"projects/{cloud.project}/regions/{blueprint.region}/resourcePolicies/{name}")
        if not blueprint.machine_type.compact:
            raise bad_request(f"Machine type {blueprint.machine_type.name} does not support compact placement.")
        if blueprint.scheduling["onHostMaintenance"] != "TERMINATE":
            raise bad_request("Instances with a compact placement policy do not support live migration.")


def _path(cloud: Cloud, call: Call) -> str:
    return f"projects/{cloud.project}/regions/{call.path['region']}/resourcePolicies/{call.path['resourcePolicy']}"


@method("compute.resourcePolicies.get")
def get_policy(cloud: Cloud, call: Call) -> Json:
    policy = cloud.part(Policies).by_name.get((call.path["region"], call.path["resourcePolicy"]))
    if policy is None:
        raise not_found(_path(cloud, call))
    return policy


@method("compute.resourcePolicies.list")
def list_policies(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    return page(
        cloud, call, [policy for (where, _), policy in cloud.part(Policies).by_name.items() if where == region]
    )


@method("compute.resourcePolicies.aggregatedList")
def aggregated_policies(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"regions/{region}": [] for region in locations.REGIONS}
    for (region, _), policy in sorted(cloud.part(Policies).by_name.items()):
        scoped[f"regions/{region}"].append(policy)
    return aggregated(cloud, call, scoped)


@starting("compute.resourcePolicies.insert")
def insert_policy(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    name, policies = call.body["name"], cloud.part(Policies).by_name
    target = f"{cloud.base}/regions/{region}/resourcePolicies/{name}"
    if (region, name) in policies:
        raise already_exists(relative(target))
    if call.body.get("groupPlacementPolicy", {}).get("collocation") != "COLLOCATED":
        raise bad_request("Only compact placement policies are emulated.")
    made: Json = {
        "kind": "compute#resourcePolicy",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "name": name,
        "description": call.body.get("description", ""),
        "groupPlacementPolicy": call.body["groupPlacementPolicy"],
        "region": f"{cloud.base}/regions/{region}",
        "selfLink": target,
        "status": "READY",
    }

    def begin() -> Failure | None:
        policies[region, name] = made
        return None

    return launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.resourcePolicies.delete")
def delete_policy(cloud: Cloud, call: Call) -> Json:
    policy = get_policy(cloud, call)
    for instance in cloud.instances.values():
        if policy["selfLink"] in instance.body.get("resourcePolicies", ()):
            raise in_use(relative(policy["selfLink"]), relative(instance.body["selfLink"]))

    def begin() -> Failure | None:
        cloud.part(Policies).by_name.pop((call.path["region"], call.path["resourcePolicy"]), None)
        return None

    return launch(cloud, call, "delete", policy["selfLink"], begin, policy["id"])
