"""A client with the calls that tests make themselves, and the stand-in for gcloud."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.emulator.server import Emulator

Json = dict[str, Any]
PROJECT, ZONE = "proj-1", "us-central1-a"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
T4: Json = {
    "guestAccelerators": [
        {
            "acceleratorCount": 1,
            "acceleratorType": f"projects/{PROJECT}/zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4",
        }
    ],
    "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": False},
}
"""Fields of an instance of `ZONE` with a T4."""


@dataclass(frozen=True)
class Client:
    """A client of an emulator.

    Attributes:
        emulator: The emulator.
    """

    emulator: Emulator

    def call(self, verb: str, path: str, body: Json | None = None) -> Json:
        """Call a method of the project by its path; return the answer, which may be an operation that runs.

        Raises:
            ValueError: it is refused; the message is the body.
        """
        url = f"{self.emulator.url}/compute/v1/projects/{PROJECT}/{path}"
        answer = requests.request(verb, url, json=body, timeout=60)
        if not answer.ok:
            raise ValueError(answer.text)
        result: Json = answer.json()
        return result

    def insert(self, name: str, machine: str = "n1-standard-4", **fields: Any) -> None:
        """Request an instance in `ZONE`."""
        params = {"sourceImage": IMAGE, "diskSizeGb": "100"}
        instance = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/{machine}",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
            **fields,
        }
        self.call("POST", f"zones/{ZONE}/instances", instance)

    def reserve(self, name: str, count: int, zone: str = ZONE, *, specific: bool = True, **properties: Any) -> None:
        """Create a reservation; `properties` are those of its instances, n1-standard-4 by default."""
        machine = {"machineType": "n1-standard-4", **properties}
        reservation = {
            "name": name,
            "specificReservation": {"count": str(count), "instanceProperties": machine},
            "specificReservationRequired": specific,
        }
        self.call("POST", f"zones/{zone}/reservations", reservation)
        self.emulator.settle()


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
