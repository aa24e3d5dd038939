"""Google's client with the calls that the tests of the emulator use, and the stand-in for gcloud."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT, ZONE = "proj-1", "us-central1-a"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
NAT = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
COMMON: dict[str, Any] = {
    "disks": [
        {
            "boot": True,
            "auto_delete": True,
            "initialize_params": {"source_image": IMAGE, "disk_size_gb": 100, "labels": {"fleet": "demo"}},
        }
    ],
    "labels": {"fleet": "demo"},
    "metadata": {
        "items": [{"key": "enable-guest-attributes", "value": "TRUE"}, {"key": "ssh-keys", "value": "fleet:k"}]
    },
    "network_interfaces": [{"network": "global/networks/default", "access_configs": NAT}],
}
"""Fields of each instance that a call does not set."""


class Client:
    """Calls an emulator; the fields of requests are those of Google's messages, as dictionaries.

    Args:
        url: Of the emulator.
    """

    def __init__(self, url: str) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials

        self._settings: dict[str, Any] = {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
            "client_options": ClientOptions(api_endpoint=url),
        }
        self._clients: dict[str, Any] = {}

    def call(self, kind: str, method: str, **request: Any) -> Any:
        """Call a method of the client of a kind of resource, ``Firewalls``."""
        from google.cloud import compute_v1

        if kind not in self._clients:
            self._clients[kind] = getattr(compute_v1, f"{kind}Client")(**self._settings)
        return getattr(self._clients[kind], method)(request={"project": PROJECT, **request})

    def change(self, kind: str, method: str, **request: Any) -> Any:
        """Call a method that starts an operation; return the operation when it is done."""
        return self.wait(self.call(kind, f"{method}_unary", **request))

    def on(self, name: str, method: str, **request: Any) -> Any:
        """Start an operation on an instance of `ZONE`, and return it."""
        return self.call("Instances", f"{method}_unary", zone=ZONE, instance=name, **request)

    def insert(self, name: str, zone: str = ZONE, **fields: Any) -> Any:
        """Request an instance; return before it exists."""
        machine = fields.pop("machine", "n1-standard-4")
        instance = {"name": name, "machine_type": f"zones/{zone}/machineTypes/{machine}", **COMMON, **fields}
        return self.call("Instances", "insert_unary", zone=zone, instance_resource=instance)

    def create(self, name: str, zone: str = ZONE, **fields: Any) -> Any:
        """Create an instance; return it."""
        operation = self.wait(self.insert(name, zone, **fields))
        assert not operation.error.errors, operation.error
        return self.instance(name, zone)

    def instance(self, name: str, zone: str = ZONE) -> Any:
        """Return an instance."""
        return self.call("Instances", "get", zone=zone, instance=name)

    def reserve(self, name: str, count: int, zone: str = ZONE, *, specific: bool = True, **properties: Any) -> None:
        """Create a reservation; `properties` are those of its instances, n1-standard-4 by default."""
        machine = {"machine_type": "n1-standard-4", **properties}
        reservation = {
            "name": name,
            "specific_reservation": {"count": count, "instance_properties": machine},
            "specific_reservation_required": specific,
        }
        operation = self.change("Reservations", "insert", zone=zone, reservation_resource=reservation)
        assert not operation.error.errors

    def wait(self, operation: Any) -> Any:
        """Wait until the operation is done; return it."""
        while operation.status.name != "DONE":
            place = {key: getattr(operation, key).rsplit("/", 1)[-1] for key in ("zone", "region")}
            kind = (
                "ZoneOperations" if place["zone"] else "RegionOperations" if place["region"] else "GlobalOperations"
            )
            given = {key: value for key, value in place.items() if value}
            operation = self.call(kind, "wait", operation=operation.name, **given)
        return operation


def t4(count: int = 1) -> dict[str, Any]:
    """Return fields of an instance of `ZONE` with T4 GPUs."""
    path = f"projects/{PROJECT}/zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4"
    return {
        "guest_accelerators": [{"accelerator_count": count, "accelerator_type": path}],
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": False},
    }


def spot(action: str = "DELETE") -> dict[str, Any]:
    """Return the scheduling of a spot instance."""
    return {
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
        "provisioning_model": "SPOT",
        "instance_termination_action": action,
    }


def limited(seconds: int, action: str = "DELETE") -> dict[str, Any]:
    """Return the scheduling of an instance with a time limit."""
    return {"max_run_duration": {"seconds": seconds}, "instance_termination_action": action}


_PROGRAM = Path(__file__).with_name("images") / "gcloud.py"


@dataclass(frozen=True)
class Gcloud:
    """The program in a directory.

    Attributes:
        directory: The directory, which is created.
    """

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        program = self.directory / "gcloud"
        program.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.read_text()}")
        program.chmod(0o755)

    def log_in(self, account: str = "me@example.com") -> None:
        """Let an account be logged in."""
        (self.directory / "account").write_text(account)

    def path(self) -> str:
        """Return the value of PATH with which the program is found."""
        return f"{self.directory}{os.pathsep}{os.environ['PATH']}"
