"""Fleets on images that take time to boot: accounts, host keys, drivers, and package locks come after sshd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.emulator.boot import BootDelays
from tests.emulator.guests import SshGuests, obstacle
from tests.program import Program

pytestmark = pytest.mark.wire
UP = ("up", "--workers", "1", "--provider", "gce", "--python", "/usr/bin/python3", "--yes")


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> SshGuests:
    if reason := obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    return SshGuests(directory)


@pytest.fixture(scope="module")
def running(guests: SshGuests) -> Iterator[Emulator]:
    with Emulator(operation_s=0.02, guests=guests, directory=guests.directory) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator, guests: SshGuests) -> Iterator[Emulator]:
    yield running
    guests.boot = BootDelays()
    assert running.state()["violations"] == []
    running.reset()


@pytest.fixture
def rented(program: Program, emulator: Emulator) -> Iterator[Program]:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    yield program
    program.close()


def test_up_waits_for_logins_the_account_and_the_right_host_key(rented: Program, guests: SshGuests) -> None:
    guests.boot = BootDelays(nologin_s=0.3, account_s=0.6, host_key_s=0.9)
    ran = rented.run(*UP)
    assert "worker-0" in ran.err
    assert "every host answers" in rented.run("up", "--yes").err


def test_the_keys_on_the_console_are_used_if_a_policy_hides_guest_attributes(
    rented: Program, emulator: Emulator
) -> None:
    constraint = "constraints/compute.disableGuestAttributesAccess"
    emulator.faults.add("412", "batch.compute.instances.getGuestAttributes", times=0, constraint=constraint)
    rented.run(*UP)
    assert emulator.state()["calls"]["batch.compute.instances.getSerialPortOutput"] > 0
