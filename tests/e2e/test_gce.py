"""Jobs on instances of the Compute Engine emulator, from `fleet up` to `fleet down`, spot included.

TensorFlow is installed there, and lists the GPUs. `./scripts/soak tensorflow` also trains with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_docs import CLOUD, TASK, commands
from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle
from tests.program import CommandResult, Program, find_paths, lines_of, wait_for

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
STEPS = 110
SCRIPT = f"""
import os, time
path = os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print(f"begins at {{step}}", flush=True)
while step < {STEPS}:
    time.sleep(0.1)
    step += 1
    if step % 30 == 0:  # copied to the other host when nothing has changed for 2 s
        if os.environ["FLEET_RANK"] == "0":
            with open(path + ".tmp", "w") as file:
                file.write(str(step))
            os.replace(path + ".tmp", path)
        print(f"step {{step}} of {STEPS}", flush=True)
print(f"total {{step}}", flush=True)
"""


@contextmanager
def emulator_in(directory: Path) -> Iterator[Emulator]:
    """Run the emulator with guests whose files are in `directory`."""
    directory.chmod(0o755)
    with Emulator(operation_s=0.2, guests=SshGuests(directory), directory=directory) as running:
        yield running


def rent(program: Program, emulator: Emulator) -> None:
    """Let the emulator be the cloud of the program."""
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if reason := obstacle():
        pytest.skip(reason)
    with emulator_in(tmp_path_factory.mktemp("guests")) as running:
        yield running


@pytest.fixture
def rented(program: Program, emulator: Emulator) -> Iterator[Program]:
    """Yield the program with the emulator as its cloud; check that no resource remains and no request was invalid."""
    rent(program, emulator)
    yield program
    program.close()
    state = emulator.state()
    assert not any(state[key] for key in ("instances", "disks", "firewalls", "addresses"))
    assert state["violations"] == []


def names(emulator: Emulator) -> list[str]:
    result: list[str] = emulator.state()["instances"]
    return result


def run_pages(rented: Program, emulator: Emulator) -> CommandResult:
    """Run the commands of the first run on Compute Engine with `task.py`; return what `fleet train` printed.

    The commands of the README are some of them.
    """
    lines = commands((ROOT / "docs" / "gce" / "first-run.md").read_text())
    readme = commands((ROOT / "README.md").read_text().partition(CLOUD)[2])
    assert [line for line in lines if line in readme] == readme
    order = ["doctor", "up", "up", "status", "exec", "train", "logs", "pull", "down"]
    assert [line.split()[1] for line in lines] == order
    doctor, dry, up, shown, listed, train, logs, pull, down = (shlex.split(line)[1:] for line in lines)
    assert re.search(r"permissions: all \d+ required permissions", rented.run(*doctor).text)
    assert "us-central1-a  n1-standard-4 + 1 nvidia-tesla-t4       0.559      1.117" in rented.run(*dry).text
    assert names(emulator) == []
    rented.run(*up, timeout=180)
    assert len(names(emulator)) == 2
    assert "2 hosts" in rented.run(*shown).text
    assert rented.run(*listed).text == "worker-[0-1] | Tesla T4\n"
    show = ("exec", "--", "sh", "-c", 'echo "[$LD_LIBRARY_PATH]"')  # which the image sets for login shells
    assert rented.run(*show).text == "worker-[0-1] | []\n"
    ran = rented.run(*train, timeout=180)
    assert lines_of(rented.run(*logs), "worker-1") == lines_of(ran, "worker-1")[-5:]
    [_, status] = rented.run("status", "-o", "json").events
    assert status["price_usd_h"] == pytest.approx(1.117, abs=0.001)
    assert status["stop_at"] - status["created_at"] == pytest.approx(8 * 3600, abs=60)
    assert "these results exist on the hosts only" in rented.run(*down, code=2).err
    assert len(names(emulator)) == 2
    rented.run(*pull)
    assert list(rented.directory.glob("results/*/checkpoints/*"))
    ended = rented.run(*down)
    assert "2 instances deleted, 0 left" in ended.err
    assert re.search(r"cost <?\$0\.", ended.err)
    assert names(emulator) == []
    return ran


def test_the_first_run_and_the_readme_work_from_an_empty_directory(rented: Program, emulator: Emulator) -> None:
    rented.script("task.py", TASK)
    ran = run_pages(rented, emulator)
    assert [lines_of(ran, task) for task in ("worker-0", "worker-1")] == [["Epoch 1/2", "Epoch 2/2"]] * 2


def test_a_job_continues_after_a_preemption(rented: Program, emulator: Emulator) -> None:
    rented.script("task.py", SCRIPT)
    rented.run("up", "--provider", "gce", "--workers", "2", "--spot", "--package", "wrapt", "--yes", timeout=180)
    before = names(emulator)
    client = rented.start("train", "task.py")

    def log() -> str:
        pattern = "*/covers/home/fleet/*/jobs/*/worker-0/attempt-1/log"
        return "".join(path.read_text() for path in find_paths(emulator.cloud.directory, pattern))

    wait_for("a checkpoint", lambda: "step 60" in log())
    emulator.preempt(next(name for name in before if name.endswith("worker-1")), 4.0)
    ran = rented.finish(client, timeout=240)
    begins = [int(line.split()[-1]) for line in lines_of(ran, "worker-1") if line.startswith("begins at")]
    assert begins[0] == 0
    assert begins[-1] >= 30
    assert [line for line in lines_of(ran, "worker-0") if line.startswith("total")] == [f"total {STEPS}"]
    assert "preempted" in ran.err
    assert names(emulator) == before
    assert "0 left" in rented.run("down", "--yes").err
