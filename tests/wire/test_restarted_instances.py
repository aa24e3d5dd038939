"""A host on Compute Engine that is restarted after a host error rejoins its job, without a client."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle
from tests.program import Program, wait_for

pytestmark = pytest.mark.wire

UP = ("up", "--workers", "2", "--provider", "gce", "--zone", "us-central1-a", "--python", "/usr/bin/python3", "--yes")
# The first two attempts end only with a host; the last one needs what the first one wrote, on both hosts.
SCRIPT = """\
import os, pathlib, time
attempt = int(os.environ["FLEET_ATTEMPT"])
pathlib.Path(f"begun-{attempt}").touch()
if attempt < 3:
    time.sleep(600)
assert pathlib.Path("begun-1").exists()
print("continued")
"""


@pytest.fixture
def guests(tmp_path_factory: pytest.TempPathFactory) -> SshGuests:
    if reason := obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    return SshGuests(directory)


@pytest.fixture
def emulator(guests: SshGuests) -> Iterator[Emulator]:
    with Emulator(operation_s=0.02, guests=guests, directory=guests.directory) as running:
        yield running


@pytest.fixture
def caller(program: Program, emulator: Emulator) -> Iterator[Program]:
    """Yield the program with a fleet of two hosts on demand."""
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    program.run(*UP)
    yield program
    program.run("down", "--yes")
    program.close()
    assert emulator.state()["violations"] == []


def test_each_host_rejoins_its_job_from_its_own_disk(caller: Program, emulator: Emulator, guests: SshGuests) -> None:
    def count(name: str) -> int:
        """Return the number of files with a name on the disks of the hosts, whether they run or not."""
        disks = [guests.directory / each.body["id"] for each in emulator.cloud.instances.values()]
        return sum(name in files for disk in disks for _, _, files in os.walk(disk))

    (caller.directory / "task.py").write_text(SCRIPT)
    caller.run("train", "task.py", "--restarts", "3", "--detach")
    names = {name[-1]: name for name in emulator.state()["instances"]}
    wait_for("both tasks", lambda: count("begun-1") == 2)
    emulator.fail_host(names["1"])
    wait_for("the second attempt", lambda: count("begun-2") == 2, 120)
    emulator.fail_host(names["0"])  # the agent of the other host listens on another port now
    wait_for("the end of the job", lambda: count("result.json") == 2, 120)
    assert [each.starts for each in emulator.cloud.instances.values()] == [2, 2]

    caller.run("up", "--yes")  # reads the other addresses of the restarted hosts
    assert caller.run("logs", "-f").text.count("continued") == 2
    assert count("boot.json") == 0
