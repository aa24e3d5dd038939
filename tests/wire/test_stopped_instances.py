"""A fleet on Compute Engine that is stopped with its disks, and started again from a computer that has moved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.program import Program, wait_for
from tests.wire.clouds import count_files, emulator_with_guests

pytestmark = pytest.mark.wire

ZONE = "us-central1-a"
PYTHON = ("--python", "/usr/bin/python3")
SLOW = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n"


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.02) as running:
        yield running


@pytest.fixture
def caller(program: Program, emulator: Emulator) -> Iterator[Program]:
    """Yield the program with a fleet of two hosts."""
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    program.env["FLEET_ADDRESS_URL"] = f"{emulator.url}/emulator/address"
    program.run("up", "--workers", "2", "--provider", "gce", "--zone", ZONE, *PYTHON, "--yes")
    yield program
    program.close()
    state = emulator.state()
    assert not any(state[key] for key in ("instances", "disks", "firewalls", "addresses"))
    assert state["violations"] == []


def recorded_hosts(program: Program) -> list[dict[str, Any]]:
    record = json.loads((program.state / "fleets" / "default" / "fleet.json").read_text())
    hosts: list[dict[str, Any]] = record["hosts"]
    return hosts


def test_a_fleet_is_stopped_with_its_job_and_continues_with_its_files(caller: Program, emulator: Emulator) -> None:
    before = recorded_hosts(caller)
    (caller.directory / "slow.py").write_text(SLOW)
    caller.run("train", "slow.py", "--detach")
    find = ("exec", "--", "find", "/home/fleet/.fleet", "-name", "begun")
    wait_for("a file of the job", lambda: count_files(emulator, "begun") == 2)
    refused = caller.run("down", "--keep-disks", code=2)
    assert "is running and would be stopped; confirmation requires a terminal" in refused.err
    assert emulator.state()["instances"]

    ran = caller.run("down", "--keep-disks", "--yes")
    assert "2 instances stopped; their disks are kept for $" in ran.err
    assert {instance.status for instance in emulator.cloud.instances.values()} == {"TERMINATED"}
    shown = caller.run("status").text
    assert "stopped for" in shown
    assert "/month" in shown
    assert "fleet 'default' is stopped; its disks are kept" in caller.run("train", "slow.py", code=14).err
    lost = caller.run("down", code=2).err
    assert "it is unknown what they hold" in lost

    emulator.set_capacity(ZONE, 1)
    emulator.set_caller("203.0.113.9")
    failed = caller.run("up", "--yes", code=12)
    assert f"their disks are in {ZONE}" in failed.err
    assert {instance.status for instance in emulator.cloud.instances.values()} == {"TERMINATED"}

    emulator.set_capacity(ZONE, 8)
    plan = " ".join(caller.run("up", "--yes").text.split())
    assert "starts worker-0, worker-1 again, with the same disks" in plan
    after = recorded_hosts(caller)
    for name in ("host_key", "private_address", "key_alias", "python"):
        assert [host[name] for host in after] == [host[name] for host in before]
    assert not {host["address"] for host in after} & {host["address"] for host in before}  # external
    assert "begun" in caller.run(*find).text
    assert "slow.py" in caller.run("jobs").text
    assert "0 left" in caller.run("down", "--yes").err
