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


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.05) as running:
        yield running


@pytest.fixture
def rented(program: Program, emulator: Emulator) -> Iterator[Program]:
    """Yield the program with a fleet of one instance, called from `HOME`."""
    program.env.update(
        FLEET_GCE_ENDPOINT=emulator.url,
        FLEET_GCE_PROJECT="proj-1",
        FLEET_ADDRESS_URL=f"{emulator.url}/emulator/address",
    )
    program.run(*UP)
    yield program
    program.close()
    assert emulator.state()["violations"] == []
    emulator.reset()


def sources(emulator: Emulator) -> list[str]:
    [rule] = [rule for name, rule in emulator.cloud.firewalls.items() if name.endswith("-ssh")]
    ranges: list[str] = rule["sourceRanges"]
    return ranges


def test_a_command_from_another_address_opens_the_firewall(rented: Program, emulator: Emulator) -> None:
    assert sources(emulator) == [f"{HOME}/32"]
    emulator.set_caller(CAFE)
    [status] = rented.run("status", "-o", "json").events[-1:]
    assert [host["reachable"] for host in status["hosts"]] == [True]
    assert sources(emulator) == [f"{CAFE}/32"]
    journal = (rented.state / "fleets" / "default" / "journal").read_text()
    assert '"kind": "patch"' in journal

    emulator.set_caller(OFFICE)
    ran = rented.run("train", "--", "true")
    assert f"SSH was open to {CAFE} only" in " ".join(ran.err.split())
    assert sources(emulator) == [f"{OFFICE}/32"]

    emulator.set_caller(HOME)
    assert "every host answers" in rented.run("up", "--yes").err
    assert sources(emulator) == [f"{HOME}/32"]


def test_a_command_waits_until_a_changed_rule_takes_effect(rented: Program, emulator: Emulator) -> None:
    emulator.cloud.propagation_s = 1.5
    emulator.set_caller(CAFE)
    assert f"SSH was open to {HOME} only" in " ".join(rented.run("train", "--", "true").err.split())


def test_a_rule_of_the_network_that_denies_ssh_is_named(rented: Program, emulator: Emulator) -> None:
    [rule] = [rule for name, rule in emulator.cloud.firewalls.items() if name.endswith("-ssh")]
    closed = {key: value for key, value in rule.items() if key != "allowed"}
    emulator.cloud.firewalls["closed"] = {**closed, "name": "closed", "denied": rule["allowed"]}
    emulator.cloud.change_firewall()
    ran = rented.run("train", "--", "true", code=13)
    assert f"firewall rule closed denies SSH from {HOME}" in " ".join(ran.err.split())
    del emulator.cloud.firewalls["closed"]
    emulator.cloud.change_firewall()


def test_an_address_list_given_by_the_user_is_not_extended(rented: Program, emulator: Emulator) -> None:
    rented.run("up", "--yes", "--ssh-from", f"{HOME}/32", "--ssh-from", f"{OFFICE}/32")
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32"]
    emulator.set_caller(CAFE)
    ran = rented.run("train", "--", "true", code=13)
    error = " ".join(ran.err.split())
    assert f"SSH is open to {HOME}, {OFFICE} only; you call from {CAFE}" in error
    step = f"fleet up --ssh-from {HOME}/32 --ssh-from {OFFICE}/32 --ssh-from {CAFE}/32"
    assert step in error
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32"]
    assert "every host answers" in rented.run(*step.split()[1:], "--yes").err
    assert sources(emulator) == [f"{HOME}/32", f"{OFFICE}/32", f"{CAFE}/32"]


def test_the_dry_run_shows_the_address_that_ssh_is_open_to(program: Program, emulator: Emulator) -> None:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    emulator.set_caller(CAFE)
    env = {"FLEET_ADDRESS_URL": f"{emulator.url}/emulator/address"}
    assert f"SSH is open to {CAFE}/32" in program.run(*UP, "--dry-run", env=env).text
    env = {"FLEET_ADDRESS_URL": f"{emulator.url}/emulator/nothing"}
    ran = program.run(*UP, "--dry-run", env=env, code=14)
    assert "--ssh-from" in ran.err
    emulator.reset()
