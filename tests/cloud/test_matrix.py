"""Fleets in a shared network and with OS Login, from `fleet up` to `fleet down`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud.access_modes import EMAIL, HOST, NETWORK, allow, write_credentials
from tests.emulator import Emulator
from tests.emulator.blueprint import project_of
from tests.emulator.client import Gcloud
from tests.emulator.guests import SHARED
from tests.program import Program, lines_of

pytestmark = pytest.mark.wire

WAYS: list[tuple[str, str, tuple[str, ...]]] = [
    ("shared", "fleet", ("--network", NETWORK, "--subnet", "shared", "--zone", "us-central1")),
    ("os-login", "sa_2000000", ("--os-login", "--image", "projects/debian-cloud/global/images/family/debian-12")),
]
"""Ways of access, each with the user of the tasks; test_iap.py and tests/e2e/test_gce.py have others, with GPUs."""
UP = ("up", "--workers", "1", "--provider", "gce", "--yes")


@pytest.fixture
def rented(program: Program, guest_emulator: Emulator, gcloud: Gcloud) -> Iterator[Program]:
    """Yield the program; its project has what all access modes require."""
    allow(guest_emulator)
    program.env.update(
        FLEET_GCE_ENDPOINT=guest_emulator.url,
        FLEET_GCE_PROJECT="proj-1",
        GOOGLE_APPLICATION_CREDENTIALS=write_credentials(program.directory, guest_emulator.url),
        PATH=gcloud.path(),
    )
    yield program
    program.close()
    guest_emulator.reset()


@pytest.mark.parametrize(("access", "user", "options"), WAYS)
def test_a_fleet_runs_from_up_to_down(
    rented: Program, guest_emulator: Emulator, access: str, user: str, options: tuple[str, ...]
) -> None:
    rented.run(*UP, *options, "--python", "/usr/bin/python3")
    projects = {project_of(rule["network"]) for rule in guest_emulator.cloud.firewalls.values()}
    assert projects == {HOST if access == "shared" else "proj-1"}

    assert lines_of(rented.run("train", "--", "id", "-un"), "worker-0") == [user]

    rented.run("down", "--yes")
    state = guest_emulator.state()
    left = ("instances", "disks", "firewalls", "addresses", "operations", "violations")
    assert not any(state[key] for key in left), state
    assert guest_emulator.cloud.profiles.get(EMAIL).keys == {}
    assert {path.name for path in guest_emulator.cloud.directory.iterdir()} <= SHARED
