"""The firewall rule of a fleet on Compute Engine follows the address of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.program import Program
from tests.wire.clouds import emulator_with_guests

pytestmark = pytest.mark.wire

HOME, CAFE, OFFICE = "127.0.0.1", "198.51.100.7", "203.0.113.9"
UP = ("up", "--workers", "1", "--provider", "gce", "--python", "/usr/bin/python3", "--yes")


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.05) as running:
        yield running


def sources(emulator: Emulator) -> list[str]:
    [rule] = [rule for name, rule in emulator.cloud.firewalls.items() if name.endswith("-ssh")]
    ranges: list[str] = rule["sourceRanges"]
    return ranges


def test_commands_from_other_addresses_open_the_firewall_unless_the_user_gave_a_list(
    caller: Program, emulator: Emulator
) -> None:
    address = f"{emulator.url}/emulator/address"
    emulator.set_caller(CAFE)
    assert f"SSH is open to {CAFE}/32" in caller.run(*UP, "--dry-run", env={"FLEET_ADDRESS_URL": address}).text
    unknown = caller.run(*UP, "--dry-run", env={"FLEET_ADDRESS_URL": f"{emulator.url}/emulator/nothing"}, code=14)
    assert "--ssh-from" in unknown.err
    emulator.set_caller(HOME)
    caller.env["FLEET_ADDRESS_URL"] = address
    caller.run(*UP)

    assert sources(emulator) == [f"{HOME}/32"]
    emulator.set_caller(CAFE)
    [status] = caller.run("status", "-o", "json").events[-1:]
    assert [host["reachable"] for host in status["hosts"]] == [True]
    assert sources(emulator) == [f"{CAFE}/32"]
    assert '"kind": "patch"' in (caller.state / "fleets" / "default" / "journal").read_text()

    emulator.cloud.propagation_s = 1.5  # a command waits until the changed rule takes effect
    emulator.set_caller(OFFICE)
    ran = caller.run("train", "--", "true")
    assert f"SSH was open to {CAFE} only" in " ".join(ran.err.split())
    assert sources(emulator) == [f"{OFFICE}/32"]
    emulator.cloud.propagation_s = 0.0

    emulator.set_caller(HOME)
    assert "every host answers" in caller.run("up", "--yes").err
    assert sources(emulator) == [f"{HOME}/32"]

    [rule] = [rule for name, rule in emulator.cloud.firewalls.items() if name.endswith("-ssh")]
    closed = {key: value for key, value in rule.items() if key != "allowed"}
    emulator.cloud.firewalls["closed"] = {**closed, "name": "closed", "denied": rule["allowed"]}
    emulator.cloud.change_firewall()
    ran = caller.run("train", "--", "true", code=13)
    assert f"firewall rule closed denies SSH from {HOME}" in " ".join(ran.err.split())
    del emulator.cloud.firewalls["closed"]
    emulator.cloud.change_firewall()

    caller.run("up", "--yes", "--ssh-from", f"{HOME}/32", "--ssh-from", f"{OFFICE}/32")
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32"]
    emulator.set_caller(CAFE)
    error = " ".join(caller.run("train", "--", "true", code=13).err.split())
    assert f"SSH is open to {HOME}, {OFFICE} only; you call from {CAFE}" in error
    step = f"fleet up --ssh-from {HOME}/32 --ssh-from {OFFICE}/32 --ssh-from {CAFE}/32"
    assert step in error
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32"]
    assert "every host answers" in caller.run(*step.split()[1:], "--yes").err
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32", f"{CAFE}/32"]
    assert emulator.state()["violations"] == []
