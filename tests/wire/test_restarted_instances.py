"""A host on Compute Engine that is restarted after a host error rejoins its job when a client follows this."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.program import Program, wait_for
from tests.wire.clouds import count_files, emulator_with_guests

pytestmark = pytest.mark.wire

UP = ("up", "--workers", "2", "--provider", "gce", "--zone", "us-central1-a", "--python", "/usr/bin/python3", "--yes")
# The first attempt ends only with a host; the second one needs what the first one wrote, on both hosts.
SCRIPT = """\
import os, pathlib, time
attempt = int(os.environ["FLEET_ATTEMPT"])
pathlib.Path(f"begun-{attempt}").touch()
if attempt < 2:
    time.sleep(600)
assert pathlib.Path("begun-1").exists()
print("continued")
"""


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory) as running:
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


def test_a_host_rejoins_its_job_with_its_own_disk(caller: Program, emulator: Emulator) -> None:
    (caller.directory / "task.py").write_text(SCRIPT)
    client = caller.start("train", "task.py", "--restarts", "3", "--host-timeout", "120", "--raw")
    wait_for("both tasks", lambda: count_files(emulator, "begun-1") == 2)
    emulator.fail_host(next(name for name in emulator.state()["instances"] if name.endswith("1")))
    assert caller.finish(client).text.count("continued") == 2
    assert sorted(each.starts for each in emulator.cloud.instances.values()) == [1, 2]
