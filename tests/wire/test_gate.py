"""What a user sees of the readiness gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Program
from tests.unit.agent.hosts import fake_python

pytestmark = pytest.mark.wire


def change_python(program: Program, directory: Path, **versions: str) -> None:
    """Let worker-1 have an interpreter with other packages than worker-0."""
    path = program.state / "fleets" / "default" / "fleet.json"
    record = json.loads(path.read_text())
    record["hosts"][1]["python"] = fake_python(directory, **versions)
    path.write_text(json.dumps(record))


def versions_of(program: Program) -> dict[str, str]:
    """What both workers have."""
    events = program.run("train", "task.py", "-o", "json").events
    (found,) = [one["versions"] for one in events if one["event"] == "task_prepared" and one["slot"] == "worker-0"]
    return dict(found)


def test_a_job_that_was_not_started_is_told_with_the_reason_and_an_exit_code_of_its_own(
    program: Program, tmp_path: Path
) -> None:
    program.script("task.py", "print('it runs')\n")
    program.run("up", "--workers", "2")
    versions = versions_of(program)
    change_python(program, tmp_path, **{**versions, "tensorflow": "1.15.5"})
    ran = program.run("train", "task.py", code=14)
    assert "was not started: TensorFlow differs: " in ran.err
    assert "1.15 on worker-1 (127." in ran.err, ran.err
    assert "it runs" not in ran.text
    assert "worker-1: never started" in ran.err
    assert "SIGKILL" not in ran.err
    assert not program.tasks()
    assert "was not started" in program.run("logs", "-f", code=14).err
    events = program.run("logs", "-f", "-o", "json", code=14).events
    (result,) = [one for one in events if one["event"] == "job_result"]
    assert (result["outcome"], result["started"]) == ("failed", False)


def test_a_warning_is_told_once_however_many_hosts_tell_it(program: Program, tmp_path: Path) -> None:
    program.script("task.py", "print('it runs')\n")
    program.run("up", "--workers", "2")
    change_python(program, tmp_path, **{**versions_of(program), "python": "3.99.0"})
    ran = program.run("train", "task.py")
    assert ran.text.count("it runs") == 2
    assert (ran.text + ran.err).count("warning: Python differs: ") == 1
