"""A host on Compute Engine that is restarted after a host error rejoins its job, without a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle
from tests.program import Program, wait_for

pytestmark = pytest.mark.wire

UP = ("up", "--workers", "2", "--provider", "gce", "--zone", "us-central1-a", "--python", "/usr/bin/python3", "--yes")
# The first attempt ends only with its host; the second one needs what the first one wrote, on both hosts.
SCRIPT = """\
import os, pathlib, time
if os.environ["FLEET_ATTEMPT"] == "1":
    pathlib.Path("begun").touch()
    time.sleep(600)
assert pathlib.Path("begun").exists()
print("continued")
"""


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if reason := obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    with Emulator(operation_s=0.02, guests=SshGuests(directory), directory=directory) as running:
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


def test_a_host_rejoins_its_job_from_its_own_disk(caller: Program, emulator: Emulator) -> None:
    (caller.directory / "task.py").write_text(SCRIPT)
    caller.run("train", "task.py", "--restarts", "3", "--detach")
    find = ("exec", "--", "find", "/home/fleet/.fleet", "-name", "begun")
    wait_for("both tasks", lambda: caller.run(*find, code=None).text.count("/begun") == 2)

    name = next(name for name in emulator.state()["instances"] if name.endswith("worker-1"))
    emulator.fail_host(name)
    wait_for("a second boot", lambda: emulator.cloud.instances["us-central1-a", name].starts == 2)
    first = ("ssh", "0", "--", "find", "/home/fleet/.fleet", "-name", "result.json")
    wait_for("the end of the job", lambda: "result.json" in caller.run(*first, code=None).text, 120)

    caller.run("up", "--yes")  # reads the other address of the restarted host
    assert caller.run("logs", "-f").text.count("continued") == 2
    assert "/boot.json" not in caller.run("exec", "--", "find", "/home/fleet/.fleet", "-name", "boot.json").text
