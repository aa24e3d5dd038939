"""Compute Engine; its methods are in `tests.emulator.methods`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from tests.emulator import methods
from tests.emulator.blueprint import project_of
from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import invalid, not_found

DOCUMENT = "compute.v1"
_VERBS = {
    "aggregatedList": "list",
    "bulkInsert": "create",
    "getXpnHost": "get",
    "insert": "create",
    "patch": "update",
    "wait": "get",
}
_OF_HOST_PROJECTS = ("networks", "subnetworks", "firewalls", "globalOperations", "regionOperations", "routers")
_NOUNS = {"regionInstances": "instances"}

for _module in pkgutil.iter_modules(methods.__path__):
    importlib.import_module(f"{methods.__name__}.{_module.name}")


def permissions(cloud: Cloud, call: Call) -> Iterator[tuple[str, str]]:
    """Return the permissions that a call needs, each with its project; public images need none."""
    project = call.path["project"]
    noun, verb = call.method.id.split(".")[1:]
    shared = project in cloud.shared and noun in _OF_HOST_PROJECTS
    if project != cloud.project and noun != "images" and not shared:
        raise not_found(f"projects/{project}")
    for name, existing in (("zone", locations.ZONES), ("region", locations.REGIONS)):
        if noun != f"{name}s" and call.path.get(name, next(iter(existing))) not in existing:
            raise invalid(name, call.path[name], f"Unknown {name}.")
    if verb == "testIamPermissions":
        return  # callers may always test theirs
    if noun != "images" or project == cloud.project:
        yield project, f"compute.{_NOUNS.get(noun, noun)}.{_VERBS.get(verb, verb)}"
        for permission in _implied(noun, verb, call):
            yield project, permission


def _implied(noun: str, verb: str, call: Call) -> list[str]:
    """Return the permissions that a call needs in addition to the one named like its method."""
    if noun == "firewalls" and verb in ("insert", "patch", "update", "delete"):
        return ["compute.networks.updatePolicy"]
    if noun == "images" and verb == "insert":
        return ["compute.disks.useReadOnly", *(["compute.images.setLabels"] if call.body.get("labels") else [])]
    if verb not in ("insert", "bulkInsert") or not noun.lower().endswith("instances"):
        return []
    given = call.body.get("instanceProperties", call.body)
    permissions = ["compute.disks.create"]
    setters = {"labels": "setLabels", "metadata": "setMetadata", "tags": "setTags"}
    setters["serviceAccounts"] = "setServiceAccount"
    permissions += ["compute.resourcePolicies.use"] if given.get("resourcePolicies") else []
    permissions += [f"compute.instances.{name}" for key, name in setters.items() if given.get(key)]
    interfaces = [
        interface for interface in given.get("networkInterfaces", ()) if not project_of(interface.get("network", ""))
    ]
    permissions += ["compute.subnetworks.use"] if interfaces else []
    permissions += (
        ["compute.subnetworks.useExternalIp"]
        if any(interface.get("accessConfigs") for interface in interfaces)
        else []
    )
    images = [disk.get("initializeParams", {}).get("sourceImage", "") for disk in given.get("disks", ())]
    return permissions + (["compute.images.useReadOnly"] if call.path["project"] in map(project_of, images) else [])
