"""Preempted Spot VMs that the other hosts start again, while no client runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import requests

from tests.emulator import Emulator
from tests.emulator.governance import account_metadata
from tests.program import Program, wait_for
from tests.wire.clouds import count_files, emulator_with_guests

pytestmark = pytest.mark.wire

EMAIL = "fleet-restart@proj-1.iam.gserviceaccount.com"
ROLE = "projects/proj-1/roles/fleetRestart"
ZONE = "us-central1-a"
UP = (
    *("up", "--workers", "3", "--provider", "gce", "--zone", ZONE, "--python", "/usr/bin/python3"),
    *("--spot", "--unattended", "--service-account", EMAIL, "--yes"),
)
SCRIPT = """\
import os, pathlib, time
if os.environ["FLEET_ATTEMPT"] == "1":
    pathlib.Path("begun").touch()
    time.sleep(600)
assert pathlib.Path("begun").exists()
"""


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.02) as running:
        running.cloud.governance.service_accounts[EMAIL] = True
        yield running


@pytest.fixture
def caller(program: Program, emulator: Emulator) -> Program:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    return program


def grant(emulator: Emulator, *permissions: str) -> None:
    emulator.cloud.governance.roles[ROLE] = list(permissions)
    emulator.cloud.governance.members[ROLE] = {f"serviceAccount:{EMAIL}"}


def test_a_preempted_host_is_started_by_its_peers(caller: Program, emulator: Emulator) -> None:
    refused = caller.run(*UP, code=2).err
    assert "it has no compute.instances.get and no compute.instances.start in the project" in " ".join(
        refused.split()
    )
    assert "gcloud iam roles create fleetRestart" in refused
    assert not emulator.state()["instances"]

    grant(emulator, "compute.instances.get", "compute.instances.start")
    assert f"{EMAIL} starts lost hosts again" in " ".join(caller.run(*UP).text.split())
    (caller.directory / "task.py").write_text(SCRIPT)
    caller.run("train", "task.py", "--restarts", "3", "--detach")
    wait_for("all tasks", lambda: count_files(emulator, "begun") == 3)

    emulator.set_capacity(ZONE, 2)  # the first tries fail
    name = next(name for name in emulator.state()["instances"] if name.endswith("worker-0"))
    emulator.preempt(name, 1.0)
    starts = "compute.instances.start"
    wait_for("a try without capacity", lambda: emulator.state()["calls"].get(starts, 0) >= 1, 60)
    assert emulator.cloud.instances[ZONE, name].starts == 1
    emulator.set_capacity(ZONE, 3)
    wait_for("the end of the job", lambda: count_files(emulator, "result.json") == 3, 120)
    assert emulator.cloud.instances[ZONE, name].starts == 2
    caller.run("up", "--yes")
    caller.run("logs", "-f")  # with the exit code of the job
    caller.run("down", "--keep-disks")
    assert {each.status for each in emulator.cloud.instances.values()} == {"TERMINATED"}
    assert all("fleet-restarts" not in each.metadata() for each in emulator.cloud.instances.values())
    assert "0 left" in caller.run("down", "--yes").err
    assert emulator.state()["violations"] == []


def test_a_stolen_token_cannot_delete(emulator: Emulator) -> None:
    grant(emulator, "compute.instances.get", "compute.instances.start")
    account = {"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/compute"]}
    token = json.loads(account_metadata(account)["default"]["token"])["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{emulator.url}/compute/v1/projects/proj-1/zones/{ZONE}/instances"
    assert requests.get(f"{url}/none", headers=headers, timeout=60).status_code == 404
    for verb, path in (("DELETE", "/none"), ("POST", "/none/stop"), ("GET", "")):
        answer = requests.request(verb, url + path, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (403, "forbidden")
