"""The emulator is not kinder than Compute Engine: what it refuses, how calls and instances end, and what waits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.emulator import Emulator
from tests.emulator.client import PROJECT, T4, ZONE, Client

INSTANCES = f"zones/{ZONE}/instances"
DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/demo"


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.01) as emulator:
        yield emulator


def boot_disk(image: str) -> list[dict[str, Any]]:
    return [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image, "diskSizeGb": "100"}}]


def limited(seconds: int) -> dict[str, Any]:
    """Return the scheduling of an instance with a time limit."""
    return {"maxRunDuration": {"seconds": str(seconds)}, "instanceTerminationAction": "DELETE"}


def flex_start(wait_s: int = 0, run_s: int = 3600, **fields: Any) -> dict[str, Any]:
    """Return the fields of a Flex-start VM with a T4."""
    scheduling = {**T4["scheduling"], "provisioningModel": "FLEX_START", **limited(run_s)}
    params = {"params": {"requestValidForDuration": {"seconds": str(wait_s)}}} if wait_s else {}
    return {**T4, "scheduling": scheduling, **params, **fields}


def affinity(name: str = "r1") -> dict[str, Any]:
    """Return the field of an instance that selects a reservation."""
    key, kind = "compute.googleapis.com/reservation-name", "SPECIFIC_RESERVATION"
    return {"reservationAffinity": {"consumeReservationType": kind, "key": key, "values": [name]}}


# --- requests that are refused --------------------------------------------------------------------------------------


def test_a_violation_is_answered_recorded_and_has_no_effect(running: Emulator) -> None:
    running.reset()
    client = Client(running)
    with pytest.raises(ValueError, match="unknown field 'colour'"):
        client.call("POST", INSTANCES, {"name": "demo", "colour": "red"})
    assert running.state()["violations"] == ["client: compute.instances.insert: Instance: unknown field 'colour'"]
    assert running.state()["instances"] == []
    with pytest.raises(ValueError, match="'one' is not a UUID"):
        client.call("DELETE", f"{INSTANCES}/demo?requestId=one")


REFUSED: list[tuple[Any, str]] = [
    ({"machine": "n2-standard-4", **T4}, r"\[n2-standard-4, nvidia-tesla-t4\] features are not compatible"),
    ({**T4, "guestAccelerators": [{**T4["guestAccelerators"][0], "acceleratorCount": 3}]}, "must be one of"),
    ({**T4, "scheduling": {}}, "do not support live migration"),
    ({"machine": "n1-standard-5"}, "does not exist in zone"),
    ({"labels": {"Fleet": "demo"}}, "does not conform"),
    ({"scheduling": {"maxRunDuration": {"seconds": "60"}}}, "instanceTerminationAction"),
    ({"scheduling": limited(10)}, "from 30 seconds to 120 days"),
    ({"tags": {"items": ["no_tag"]}}, "Must be a match of regex"),
    ({"disks": []}, "boot disk"),
    ({"networkInterfaces": [{"network": "global/networks/other"}]}, "global/networks/other' was not found"),
    ({"disks": boot_disk("projects/p/global/images/family/f")}, "family/f' was not found"),
    ({"machine": "c4-standard-4"}, "pd-standard disk type cannot be used by c4-standard-4"),
    (flex_start(60), "from 90 seconds to 2 hours"),
    (flex_start(run_s=8 * 24 * 3600), "for 10 minutes to 7 days"),
    (flex_start(guestAccelerators=[]), "n1-standard-4 without GPUs"),
    ({**flex_start(90), "scheduling": T4["scheduling"]}, "only for the provisioning model FLEX_START"),
    (affinity("r2"), "do not exist"),
    (affinity("any"), "can not be targeted as specificReservationRequired is not set"),
    ({**affinity(), "machine": "n1-standard-8"}, "does not match the properties"),
    ({**affinity(), "scheduling": {"provisioningModel": "SPOT"}}, "cannot consume a specific reservation"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=range(len(REFUSED)))
def test_instances_that_compute_engine_would_refuse_are_refused(
    emulator: Emulator, client: Client, fields: Any, message: str
) -> None:
    client.reserve("r1", 1)
    client.reserve("any", 1, specific=False)
    with pytest.raises(ValueError, match=message):
        client.insert("demo", **fields)
    emulator.settle()
    assert emulator.state()["instances"] == []


def test_changes_that_the_state_of_an_instance_forbids_are_refused(emulator: Emulator, client: Client) -> None:
    client.insert("demo", scheduling=limited(3600))
    emulator.settle()
    stale: dict[str, Any] = {"items": [], "fingerprint": "c3RhbGU="}
    rule = {"name": "f", "sourceRanges": ["me"], "allowed": [{"IPProtocol": "tcp"}]}
    calls: list[tuple[str, str, str, Any]] = [
        ("metadata fingerprint", "POST", f"{INSTANCES}/demo/setMetadata", stale),
        ("is already being used by", "DELETE", f"zones/{ZONE}/disks/demo", None),
        ("TERMINATED", "POST", f"{INSTANCES}/demo/setScheduling", limited(7200)),
        ("was not found", "POST", f"{INSTANCES}/other/stop", None),
        ("already being used by", "POST", "global/images", {"name": "mine", "sourceDisk": DISK}),
        ("CIDR", "POST", "global/firewalls", rule),
    ]
    with pytest.raises(ValueError, match="instances/demo' already exists"):
        client.insert("demo")
    for message, *call in calls:
        with pytest.raises(ValueError, match=message):
            client.call(*call)
    made = emulator.cloud.instance(ZONE, "demo").body["metadata"]
    client.call("POST", f"{INSTANCES}/demo/setMetadata", {**stale, "fingerprint": made["fingerprint"]})


# --- faults ---------------------------------------------------------------------------------------------------------


def test_the_emulator_starts_by_hand_and_ends_with_a_signal() -> None:
    words = [sys.executable, "-m", "tests.emulator", "--no-guests", "--operation-s", "0", "--project", "other"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            ready, url, *project = process.stdout.readline().split()
            assert (ready, project) == ("ready:", ["project", "other"])
            assert requests.get(f"{url}/compute/v1/projects/other/zones", timeout=60).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0
        finally:
            process.kill()


def test_the_emulator_is_controlled_over_http(emulator: Emulator, client: Client) -> None:
    def post(action: str, **body: Any) -> int:
        return requests.post(f"{emulator.url}/emulator/{action}", json=body, timeout=60).status_code

    error = {"code": 418, "message": "I am a teapot", "errors": [{"reason": "tea", "message": "I am a teapot"}]}
    assert post("faults", kind="http", match="compute.instances.insert", status=418, body={"error": error}) == 200
    with pytest.raises(ValueError, match="I am a teapot"):
        client.insert("demo")
    assert [post("faults", kind="404", colour="red"), post("preempt", name="demo"), post("nothing")] == [
        400,
        400,
        404,
    ]
    assert [post("capacity", zone=ZONE, limit=0), post("advance", seconds=3600), post("clear")] == [200] * 3
    client.insert("demo")
    emulator.settle()
    assert requests.get(f"{emulator.url}/emulator/state", timeout=60).json()["instances"] == ["demo"]
