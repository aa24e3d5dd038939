"""Cloud Resource Manager."""

from __future__ import annotations

import re
from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal, bad_request
from tests.emulator.registry import method
from tests.emulator.storage import Storage

Json = dict[str, Any]
DOCUMENT = "cloudresourcemanager.v1"
_PERMISSION = re.compile(r"(?:compute|iam|iap|resourcemanager|serviceusage)\.[a-zA-Z]+\.[a-zA-Z]+")


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs; callers may always test theirs."""
    verb = call.method.id.rpartition(".")[2]
    return () if verb == "testIamPermissions" else ((call.path["resource"], f"resourcemanager.projects.{verb}"),)


@method("cloudresourcemanager.projects.getIamPolicy")
def get_policy(cloud: Cloud, call: Call) -> Json:
    members = cloud.part(Storage).project
    return {"bindings": [{"role": role, "members": sorted(members[role])} for role in sorted(members)], "version": 1}


@method("cloudresourcemanager.projects.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    project = call.path["resource"]
    if project != cloud.project and project not in cloud.shared:
        raise Refusal(403, "forbidden", "The caller does not have permission", canonical="PERMISSION_DENIED")
    asked = call.body.get("permissions", [])
    if unknown := [name for name in asked if not _PERMISSION.fullmatch(name)]:
        raise bad_request(f"Permission {unknown[0]} is not valid for this resource.")
    return {"permissions": [name for name in asked if not cloud.denied & {name, f"{project}:{name}"}]}
