"""`fleet up --workers N` adds hosts to a fleet and releases them; the other hosts keep everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.program import Program, wait_for
from tests.wire.clouds import emulator_with_guests

pytestmark = pytest.mark.wire

ZONE = "us-central1-a"
SCRIPT = """
import json, os, sys, time
with open(os.path.join(os.environ["FLEET_MODEL_DIR"], "result"), "w") as file:
    file.write("model")
workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
open("written", "w").write(str(workers))
print(f"of {workers}", flush=True)
time.sleep(float(sys.argv[1]))
"""


def record(program: Program) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((program.state / "fleets" / "default" / "fleet.json").read_text())
    return content


def test_a_local_fleet_grows_during_a_job_and_shrinks(program: Program) -> None:
    program.script("task.py", SCRIPT)
    program.run("up", "--workers", "2")
    first = record(program)
    program.run("train", "task.py", "--", "0", code=0)
    program.run("train", "task.py", "--detach", "--", "600")
    assert "worker-2 would be started" in program.run("up", "--workers", "3", "--dry-run").err
    assert "worker-2 added; it has 3 workers now" in program.run("up", "--workers", "3").err
    grown = record(program)
    assert grown["hosts"][:2] == first["hosts"]
    assert [instance["id"] for instance in grown["instances"]][:2] == [entry["id"] for entry in first["instances"]]
    assert "runs on worker-1; the fleet was not changed" in program.run("up", "--workers", "1", code=14).err
    program.run("up", "--workers", "2")  # the job does not run on worker-2
    program.run("stop")
    assert record(program)["hosts"] == first["hosts"]
    assert len(program.listeners()) == 2

    program.run("up", "--workers", "3")
    ran = program.run("train", "--raw", "task.py", "--", "0")
    assert ran.text.count("of 3") == 3
    refused = program.run("up", "--workers", "2", code=2).err
    assert "results exist on the hosts only" in refused
    assert "--yes" in refused
    assert "worker-0:" not in refused  # its results are not at risk
    assert len(program.listeners()) == 3
    assert "worker-2 would be deleted" in program.run("up", "--workers", "2", "--dry-run").err
    shrunk = program.run("up", "--workers", "2", "--yes", "-o", "json")
    [event] = [event for event in shrunk.events if event["event"] == "fleet_resized"]
    assert (event["workers"], event["added"], event["released"]) == (2, [], ["worker-2"])
    assert record(program)["hosts"] == first["hosts"]
    assert not list((program.state / "local").glob("*worker-2*"))
    assert program.run("jobs").text.count("task.py") == 3
    assert "every host answers" in program.run("up").err


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.05) as running:
        yield running


def test_a_rented_fleet_grows_in_its_zone_or_stays_as_it_is(program: Program, emulator: Emulator) -> None:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    program.run("up", "--workers", "1", "--machine-type", "e2-small", "--python", "/usr/bin/python3", "--yes")
    before = record(program)
    zone = before["instances"][0]["zone"]
    assert "costs money" in program.run("up", "--workers", "2", code=2).err
    emulator.set_capacity(zone, 0)
    program.run("up", "--workers", "2", "--yes", code=12)
    assert record(program) == before
    assert len(emulator.cloud.instances) == 1

    emulator.set_capacity(zone, 8)
    grown = program.run("up", "--workers", "2", "--yes", "-o", "json")
    [quoted] = [event for event in grown.events if event["event"] == "quoted"]
    assert (quoted["instances"], [offer["zone"] for offer in quoted["offers"]]) == (1, [zone])
    after = record(program)
    assert after["hosts"][0] == before["hosts"][0]
    assert {instance["zone"] for instance in after["instances"]} == {zone}
    assert all(instance["delete_at"] for instance in after["instances"])
    shrunk = program.run("up", "--workers", "1")
    assert "worker-1 deleted" in shrunk.err
    wait_for("the deletion", lambda: len(emulator.cloud.instances) == 1)
    assert record(program)["hosts"] == before["hosts"]
    program.run("down", "--yes")
    state = emulator.state()
    assert not any(state[key] for key in ("instances", "disks", "firewalls", "addresses"))
    assert state["violations"] == []
