"""Instances that could not be prepared are kept for a limited time, and stop by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from provision.gce.options import STOP_AT
from tests.emulator import Emulator
from tests.program import Program, wait_for
from tests.wire.clouds import emulator_with_guests

pytestmark = pytest.mark.wire

ZONE = "us-central1-a"
UP = ("up", "--workers", "1", "--provider", "gce", "--zone", ZONE, "--yes")


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.05) as running:
        yield running


@pytest.fixture
def failed(program: Program, emulator: Emulator) -> Iterator[Program]:
    """Yield the program after a `fleet up` that could not install a package."""
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    ran = program.run(*UP, "--package", "no-such-package", code=14)
    error = " ".join(ran.err.split())
    assert "worker-0 kept until" in error
    assert "then stopped: until then, the next `fleet up` continues there" in error
    assert "next: fleet up fleet down" in error
    yield program
    program.close()
    state = emulator.state()
    assert not any(state[key] for key in ("instances", "disks", "firewalls", "addresses"))
    assert state["violations"] == []


def metadata(emulator: Emulator) -> dict[str, Any]:
    [instance] = emulator.cloud.instances.values()
    items: dict[str, Any] = instance.body["metadata"]
    return items


def stop_at(emulator: Emulator) -> int:
    return int(next(item["value"] for item in metadata(emulator)["items"] if item["key"] == STOP_AT))


def test_the_next_up_uses_the_kept_instance_which_else_stops_by_itself(failed: Program, emulator: Emulator) -> None:
    record = json.loads((failed.state / "fleets" / "default" / "fleet.json").read_text())
    assert stop_at(emulator) == round(record["kept_until"])
    assert "worker-0 runs until" in failed.run("status", code=None).text
    [before] = [instance.body["id"] for instance in emulator.cloud.instances.values()]
    emulator.set_capacity(ZONE, 0)  # no further instance can be created
    assert "every host answers" in failed.run("up", "--yes", "--python", "/usr/bin/python3").err
    assert [instance.body["id"] for instance in emulator.cloud.instances.values()] == [before]
    assert stop_at(emulator) > record["kept_until"] + 7 * 3600

    emulator.set_capacity(ZONE, 8)
    [instance] = emulator.cloud.instances.values()
    instance_metadata = metadata(emulator)
    items = [{**item, "value": "1"} if item["key"] == STOP_AT else item for item in instance_metadata["items"]]
    url = f"{emulator.url}/compute/v1/projects/proj-1/zones/{ZONE}/instances/{instance.body['name']}"
    body = {"fingerprint": instance_metadata["fingerprint"], "items": items}
    assert requests.post(f"{url}/setMetadata", json=body, timeout=60).status_code == 200
    wait_for("the end of the instance", lambda: instance.status == "TERMINATED", 60)
    assert "every host answers" not in failed.run(*UP, "--python", "/usr/bin/python3").err  # it was started again
    assert instance.status == "RUNNING"
    assert stop_at(emulator) > record["kept_until"] + 7 * 3600
    assert "0 left" in failed.run("down", "--yes").err
