"""At the end of their lifetime, hosts save the newest checkpoint of their job and power off, without a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator import Emulator
from tests.program import Program, find_paths, lines_of, wait_for
from tests.wire.clouds import emulator_with_guests

pytestmark = pytest.mark.wire

UP = ("up", "--provider", "gce", "--workers", "2", "--python", "/usr/bin/python3", "--yes")

# Counts, and saves the count only on SIGTERM.
SCRIPT = """
import os, signal, sys, time
path, notices = os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "count"), []
signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
step = int(open(path).read()) if os.path.exists(path) else 0
print(f"begins at {step}", flush=True)
while not notices:
    time.sleep(0.05)
    step += 1
    print(f"step {step}", flush=True)
if os.environ["FLEET_RANK"] == "0":
    with open(path + ".tmp", "w") as file:
        file.write(str(step))
    os.replace(path + ".tmp", path)
sys.exit(42)
"""


@pytest.fixture
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator_with_guests(tmp_path_factory, operation_s=0.02) as running:
        yield running


@pytest.fixture
def rented(program: Program, emulator: Emulator) -> Iterator[Program]:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    yield program
    program.close()
    assert emulator.state()["violations"] == []


def files(emulator: Emulator, pattern: str) -> list[Path]:
    return find_paths(emulator.cloud.directory, f"*/covers/home/fleet/{pattern}")


def left_s(emulator: Emulator) -> float:
    """Return the time until the hosts power off."""
    return (
        min(int(each.metadata()["fleet-stop-at"]) for each in emulator.cloud.instances.values())
        - emulator.clock.now()
    )


def test_a_job_is_saved_and_its_hosts_power_off_without_a_client(rented: Program, emulator: Emulator) -> None:
    rented.script("task.py", SCRIPT)
    rented.run(*UP, "--max-duration", "20h")
    client = rented.start("train", "task.py")
    wait_for(
        "a step", lambda: any("step 5" in log.read_text() for log in files(emulator, "*/jobs/*/*/attempt-1/log"))
    )
    client.kill()
    client.wait()

    instances = list(emulator.cloud.instances.values())
    rented.run("extend", "2h")  # without a restart, and without a question
    assert 7000 < left_s(emulator) < 7300
    assert [instance.starts for instance in instances] == [1, 1]
    emulator.advance(left_s(emulator) - 70.0 - 1.0)
    wait_for("the result on both hosts", lambda: len(files(emulator, "*/jobs/*/*/result*")) == 2, 20)
    emulator.advance(left_s(emulator))
    wait_for("the power-off", lambda: all(instance.status == "TERMINATED" for instance in instances))
    assert len(emulator.cloud.disks) == 2

    rented.run("up", "--yes")
    assert 19.9 * 3600 < left_s(emulator) < 20.1 * 3600  # although the clock of this computer is 20 h behind now
    ended = rented.run("logs", code=100)
    assert "--max-duration" in " ".join(ended.err.split())
    last = lines_of(ended, "worker-0")[-1].split()[-1]
    rented.run("pull", code=None)
    [saved] = rented.directory.glob("results/*/checkpoints/*")
    assert saved.read_text() == last
    assert "0 left" in rented.run("down", "--yes").err


# Ends when a file exists.
WAITING = """
import os, time
while not os.path.exists("/tmp/end"):
    time.sleep(0.05)
print("ended", flush=True)
"""


def test_a_host_without_a_job_powers_off_after_the_idle_timeout(rented: Program, emulator: Emulator) -> None:
    rented.script("task.py", WAITING)
    rented.run(*UP, "--workers", "1", "--idle-timeout", "10m")
    rented.run("train", "task.py", "--detach")
    [instance] = emulator.cloud.instances.values()
    emulator.advance(1200.0)
    [files_of] = [emulator.cloud.directory / instance.body["id"] / "covers"]
    (files_of / "tmp" / "end").touch()
    wait_for("the result", lambda: files(emulator, "*/jobs/*/*/result.json"))
    assert instance.status == "RUNNING"
    emulator.advance(1200.0)
    wait_for("the power-off", lambda: instance.status == "TERMINATED")
    assert "0 left" in rented.run("down", "--yes").err
