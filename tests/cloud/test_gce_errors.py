"""Errors from public threads, returned by the emulator, up to the lines that the program prints."""

from __future__ import annotations

import shlex

import pytest

from tests.emulator import Emulator
from tests.program import Program
from tests.unit.provision.gce.bodies import BODIES

pytestmark = pytest.mark.wire
UP = ("up", "--workers", "2", "--gpu", "t4", "--zone", "us-central1-a", "--yes")
CODES = {"usage": 2, "credentials": 10, "quota": 11, "capacity": 12, "unreachable": 13, "missing": 14}


def printed(text: str) -> str:
    """Return printed text without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["stockout_with_details", "no_gpu_quota", "permission", "external_address"])
def test_an_error_of_a_public_thread_is_printed_with_a_fix(name: str, caller: Program, emulator: Emulator) -> None:
    body, expected = BODIES[name], BODIES[name]["expected"]
    kind = "operation-error" if body.get("operation") else "http"
    emulator.faults.add(kind, body["method"], times=0, status=body["status"], body=body["body"])
    ran = caller.run(*UP, code=CODES[expected["kind"]])
    assert expected["message"] in printed(ran.err)
    assert expected["fix"] in printed(ran.err)
    if expected["kind"] != "capacity":  # its cause is the localized message
        messages = [each["message"] for each in body["body"].get("error", body["body"]).get("errors", ())]
        assert not messages or any(printed(message)[:60] in printed(ran.err) for message in messages)
    state = emulator.state()
    assert not any((state["instances"], state["disks"], state["firewalls"]))


def test_the_printed_command_fits_the_disks_into_the_quota_of_a_new_project(
    caller: Program, emulator: Emulator
) -> None:
    emulator.start_project()
    assert "project proj-1 has no network default" in printed(caller.run(*UP, code=2).err)
    cpu = ("--machine-type", "e2-medium", "--network", "main", "--subnet", "main", "--zone", "us-central1-a")
    refused = caller.run("up", "--workers", "6", *cpu, "--dry-run", code=11)
    assert "the quota SSD_TOTAL_GB of project proj-1 allows 500 in us-central1" in printed(refused.err)
    [command] = [
        line for line in refused.err.splitlines() if "--disk-type pd-standard" in line and "fleet up" in line
    ]
    words = shlex.split(command[command.index("fleet up") :])[1:]
    assert "6 instances" in caller.run(*words).text


def test_an_unknown_error_ends_at_once_with_the_text_of_google(caller: Program, emulator: Emulator) -> None:
    emulator.faults.add(
        "operation-error", "compute.*ulkInsert", times=0, code="QUANTUM_FLUX", message="The flux turned."
    )
    ran = caller.run("up", "--gpu", "t4", "--yes", code=14)
    assert "Compute Engine rejected the request (QUANTUM_FLUX)" in printed(ran.err)
    assert "cause: The flux turned." in printed(ran.err)
    assert "gcloud compute operations list --project proj-1" in printed(ran.err)
    assert sum(count for name, count in emulator.state()["calls"].items() if "ulkInsert" in name) == 1
