"""The emulator is not kinder than Compute Engine: what it refuses, how calls and instances end, and what waits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions

from tests.emulator import Emulator
from tests.emulator.client import PROJECT, ZONE, Client, limited, spot, t4

INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/demo"


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.01) as emulator:
        yield emulator


def boot_disk(image: str, size_gb: int = 100, **fields: Any) -> list[dict[str, Any]]:
    params = {"source_image": image, "disk_size_gb": size_gb}
    return [{"boot": True, "auto_delete": True, "initialize_params": params, **fields}]


def flex_start(wait_s: int = 0, run_s: int = 3600, **fields: Any) -> dict[str, Any]:
    """Return the fields of a Flex-start VM with a T4."""
    scheduling = {**t4()["scheduling"], "provisioning_model": "FLEX_START", **limited(run_s)}
    params = {"params": {"request_valid_for_duration": {"seconds": wait_s}}} if wait_s else {}
    return {**t4(), "scheduling": scheduling, **params, **fields}


def affinity(name: str = "r1") -> dict[str, Any]:
    """Return the field of an instance that selects a reservation."""
    key, kind = "compute.googleapis.com/reservation-name", "SPECIFIC_RESERVATION"
    return {"reservation_affinity": {"consume_reservation_type": kind, "key": key, "values": [name]}}


# --- requests that are refused --------------------------------------------------------------------------------------


def test_a_violation_is_answered_recorded_and_has_no_effect(running: Emulator) -> None:
    running.reset()
    answer = requests.post(running.url + INSTANCES, json={"name": "demo", "colour": "red"}, timeout=60)
    assert answer.status_code == 400
    assert running.state()["violations"] == ["client: compute.instances.insert: Instance: unknown field 'colour'"]
    assert running.state()["instances"] == []
    answer = requests.delete(f"{running.url}{INSTANCES}/demo?requestId=one", timeout=60)
    assert "'one' is not a UUID" in answer.json()["error"]["message"]


REFUSED: list[tuple[Any, str]] = [
    ({"machine": "n2-standard-4", **t4()}, r"\[n2-standard-4, nvidia-tesla-t4\] features are not compatible"),
    (t4(3), "must be one of"),
    ({**t4(), "scheduling": {}}, "do not support live migration"),
    ({"machine": "n1-standard-5"}, "does not exist in zone"),
    ({"labels": {"Fleet": "demo"}}, "does not conform"),
    ({"scheduling": {"max_run_duration": {"seconds": 60}}}, "instanceTerminationAction"),
    ({"scheduling": limited(10)}, "from 30 seconds to 120 days"),
    ({"tags": {"items": ["no_tag"]}}, "Must be a match of regex"),
    ({"disks": []}, "boot disk"),
    ({"network_interfaces": [{"network": "global/networks/other"}]}, "global/networks/other' was not found"),
    ({"disks": boot_disk("projects/p/global/images/family/f")}, "family/f' was not found"),
    ({"machine": "c4-standard-4"}, "pd-standard disk type cannot be used by c4-standard-4"),
    (flex_start(60), "from 90 seconds to 2 hours"),
    (flex_start(run_s=8 * 24 * 3600), "for 10 minutes to 7 days"),
    (flex_start(guest_accelerators=[]), "n1-standard-4 without GPUs"),
    ({**flex_start(90), "scheduling": t4()["scheduling"]}, "only for the provisioning model FLEX_START"),
    (affinity("r2"), "do not exist"),
    (affinity("any"), "can not be targeted as specificReservationRequired is not set"),
    ({**affinity(), "machine": "n1-standard-8"}, "does not match the properties"),
    ({**affinity(), "scheduling": spot()}, "cannot consume a specific reservation"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=range(len(REFUSED)))
def test_instances_that_compute_engine_would_refuse_are_refused(
    emulator: Emulator, client: Client, fields: Any, message: str
) -> None:
    client.reserve("r1", 1)
    client.reserve("any", 1, specific=False)
    with pytest.raises(exceptions.ClientError, match=message):
        client.insert("demo", **fields)
    emulator.settle()
    assert emulator.state()["instances"] == []


def test_changes_that_the_state_of_an_instance_forbids_are_refused(emulator: Emulator, client: Client) -> None:
    made = client.create("demo", scheduling=limited(3600))
    stale = {"items": [], "fingerprint": "c3RhbGU="}
    rules = [{"I_p_protocol": "tcp"}]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("instances/demo' already exists", lambda: client.insert("demo")),
        ("is already being used by", lambda: client.call("Disks", "delete_unary", zone=ZONE, disk="demo")),
        ("metadata fingerprint", lambda: client.on("demo", "set_metadata", metadata_resource=stale)),
        ("TERMINATED", lambda: client.on("demo", "set_scheduling", scheduling_resource=limited(7200))),
        ("was not found", lambda: client.on("other", "stop")),
        ("already being used by", lambda: insert_image(client)),
        (
            "CIDR",
            lambda: client.call(
                "Firewalls",
                "insert_unary",
                firewall_resource={"name": "f", "source_ranges": ["me"], "allowed": rules},
            ),
        ),
    ]
    for message, call in calls:
        with pytest.raises(exceptions.ClientError, match=message):
            call()
    fresh = {**stale, "fingerprint": made.metadata.fingerprint}
    client.wait(client.on("demo", "set_metadata", metadata_resource=fresh))


def insert_image(client: Client, name: str = "mine") -> Any:
    return client.call(
        "Images", "insert_unary", image_resource={"name": name, "source_disk": DISK, "labels": {"a": "b"}}
    )


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
    with pytest.raises(exceptions.GoogleAPICallError, match="I am a teapot"):
        client.insert("demo")
    assert [post("faults", kind="404", colour="red"), post("preempt", name="demo"), post("nothing")] == [
        400,
        400,
        404,
    ]
    assert [post("capacity", zone=ZONE, limit=0), post("advance", seconds=3600), post("clear")] == [200] * 3
    client.create("demo")
    assert requests.get(f"{emulator.url}/emulator/state", timeout=60).json()["instances"] == ["demo"]
