"""Service Usage: the APIs that the project has enabled."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.governance import PROJECT_NUMBER
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "serviceusage.v1"
_NAMES = (
    "cloudbilling.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "iap.googleapis.com",
    "orgpolicy.googleapis.com",
    "oslogin.googleapis.com",
)


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs."""
    return ((cloud.project, f"serviceusage.services.{call.method.id.rpartition('.')[2]}"),)


@method("serviceusage.services.get")
def get_service(cloud: Cloud, call: Call) -> Json:
    return _service(cloud, _host(call))


@method("serviceusage.services.list")
def list_services(cloud: Cloud, call: Call) -> Json:
    return {"services": [_service(cloud, name) for name in _NAMES]}


@method("serviceusage.services.enable", "serviceusage.services.disable")
def change_service(cloud: Cloud, call: Call) -> Json:
    change = (
        cloud.governance.disabled.discard if call.method.id.endswith(".enable") else cloud.governance.disabled.add
    )
    change(_host(call))
    return {"name": f"operations/acf.{_host(call)}", "done": True}


def _host(call: Call) -> str:
    return call.path["name"].rpartition("/")[2]


def _service(cloud: Cloud, host: str) -> Json:
    state = "DISABLED" if host in cloud.governance.disabled else "ENABLED"
    parent = f"projects/{PROJECT_NUMBER}"
    return {"name": f"{parent}/services/{host}", "parent": parent, "config": {"name": host}, "state": state}
