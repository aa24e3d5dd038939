"""The methods of firewall rules."""

from __future__ import annotations

import re
from typing import Any

from tests.emulator import failures
from tests.emulator.blueprint import project_of
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, already_exists, invalid, required
from tests.emulator.listing import page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.registry import method, starting

Json = dict[str, Any]


_RANGE = re.compile(r"\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?|[0-9a-fA-F:]+(/\d{1,3})?")


@method("compute.firewalls.get")
def get_firewall(cloud: Cloud, call: Call) -> Json:
    return cloud.firewalls[existing_name(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")]


@method("compute.firewalls.list")
def list_firewalls(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _rules(cloud, call).values())


@starting("compute.firewalls.insert")
def insert_firewall(cloud: Cloud, call: Call) -> Json:
    name = call.body["name"]
    if name in cloud.firewalls:
        raise already_exists(f"projects/{cloud.project}/global/firewalls/{name}")
    target = f"{cloud.url_of(call.path['project'])}/global/firewalls/{name}"
    made: Json = {
        "kind": "compute#firewall",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "selfLink": target,
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        "logConfig": {"enable": False},
        "description": "",
        **_firewall(cloud, call, call.body),
    }
    if made["direction"] == "INGRESS" and not made.get("sourceTags"):
        made.setdefault("sourceRanges", ["0.0.0.0/0"])

    def begin() -> Failure | None:
        if name in cloud.firewalls:
            return failures.operation_failure("RESOURCE_ALREADY_EXISTS", f"The resource '{name}' already exists", 409)
        quota = cloud.limits.project_shortage("FIREWALLS", cloud.usage())
        if quota is None:
            cloud.firewalls[name] = made
            cloud.change_firewall()
        return quota

    return launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.firewalls.patch", "compute.firewalls.update")
def change_firewall(cloud: Cloud, call: Call) -> Json:
    name = existing_name(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")
    old = cloud.firewalls[name]
    kind = call.method.id.rsplit(".", 1)[-1]
    fixed = ("kind", "id", "creationTimestamp", "selfLink", "name", "direction", "network")
    kept = old if kind == "patch" else {field: old[field] for field in fixed}
    changed = {**kept, **_firewall(cloud, call, {**kept, **call.body})}

    def begin() -> Failure | None:
        if name in cloud.firewalls:
            cloud.firewalls[name] = changed
            cloud.change_firewall()
        return None

    return launch(cloud, call, kind, old["selfLink"], begin, old["id"])


@starting("compute.firewalls.delete")
def delete_firewall(cloud: Cloud, call: Call) -> Json:
    name = existing_name(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")
    rule = cloud.firewalls[name]

    def begin() -> Failure | None:
        cloud.firewalls.pop(name, None)
        cloud.change_firewall()
        return None

    return launch(cloud, call, "delete", rule["selfLink"], begin, rule["id"])


def _rules(cloud: Cloud, call: Call) -> dict[str, Json]:
    """The firewall rules of the project that the path names."""
    project = call.path["project"]
    return {name: rule for name, rule in cloud.firewalls.items() if project_of(rule["selfLink"]) == project}


def _firewall(cloud: Cloud, call: Call, given: Json) -> Json:
    """The fields of a firewall rule that a request may set, checked."""
    reference, project = given.get("network", "global/networks/default"), call.path["project"]
    network = cloud.network(reference if project_of(reference) else f"projects/{project}/{reference}")
    if project_of(network) != project:
        raise invalid("resource.network", reference, "Cross project referencing is not allowed for this resource.")
    if not given.get("allowed") and not given.get("denied"):
        raise required("resource.allowed")
    for name in ("sourceRanges", "destinationRanges"):
        for text in given.get(name, ()):
            if not _RANGE.fullmatch(text):
                raise invalid(f"resource.{name}", text, "It must be a range of addresses in CIDR notation.")
    for rule in (*given.get("allowed", ()), *given.get("denied", ())):
        if "IPProtocol" not in rule:
            raise required("resource.allowed[0].IPProtocol")
    return {**given, "network": network}
