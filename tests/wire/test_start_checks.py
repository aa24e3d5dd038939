"""The output of the checks before a job starts."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from fleet.state import Store
from tests.process.train.agent.hosts import fake_python
from tests.program import Program, wait_for

pytestmark = pytest.mark.wire


def change_python(program: Program, directory: Path, **versions: str) -> None:
    """Give worker-1 an interpreter with other packages than worker-0."""
    path = program.state / "fleets" / "default" / "fleet.json"
    record = json.loads(path.read_text())
    directory.mkdir()
    record["hosts"][1]["python"] = fake_python(directory, **versions)
    path.write_text(json.dumps(record))


def versions_of(program: Program) -> dict[str, str]:
    """Return the package versions of both workers, which must be equal."""
    events = program.run("train", "task.py", "-o", "json").events
    (versions,) = [
        event["versions"] for event in events if event["event"] == "task_prepared" and event["slot"] == "worker-0"
    ]
    return dict(versions)


def test_different_versions_are_reported_and_refused_with_their_reason(program: Program, tmp_path: Path) -> None:
    program.script("task.py", "print('it runs')\n")
    program.run("up", "--workers", "2")
    versions = versions_of(program)
    change_python(program, tmp_path / "newer", **{**versions, "python": "3.99.0"})
    ran = program.run("train", "--raw", "task.py")
    assert ran.text.count("it runs") == 2
    assert (ran.text + ran.err).count("warning: Python differs: ") == 1

    change_python(program, tmp_path / "older", **{**versions, "tensorflow": "1.15.5"})
    ran = program.run("train", "task.py", code=14)
    assert "was not started: TensorFlow differs: " in ran.err
    assert "1.15 on worker-1 (127." in ran.err, ran.err
    assert "it runs" not in ran.text
    assert "worker-1: never started" in ran.err
    assert "SIGKILL" not in ran.err
    assert not program.tasks()
    assert "was not started" in program.run("logs", "-f", code=14).err
    events = program.run("logs", "-f", "-o", "json", code=14).events
    (result,) = [event for event in events if event["event"] == "job_result"]
    assert (result["outcome"], result["started"]) == ("failed", False)


def test_a_fleet_that_is_deleted_while_train_waits_for_it_gets_no_job(pair: Program) -> None:
    pair.script("task.py", "print('it runs')\n")
    fleets = Store(pair.state)
    directory = fleets.fleet("default").path
    with fleets.lock("default", "down"):
        train = pair.start("train", "task.py")
        lock = f"{directory}.lock"
        waiting = psutil.Process(train.pid)
        wait_for("train to wait for the lock", lambda: lock in [file.path for file in waiting.open_files()])
        directory.rename(directory.with_name("deleted"))
    try:
        err = train.communicate()[1].decode()
    finally:
        directory.with_name("deleted").rename(directory)
    assert train.returncode == 102
    assert "error: fleet 'default' does not exist\n" in err
    assert not pair.tasks()
