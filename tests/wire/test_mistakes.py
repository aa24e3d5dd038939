"""User errors: one sentence, the next step, the documented exit code, and no side effect."""

from __future__ import annotations

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

NO_CREDENTIALS = {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "task.py"], 102, "does not exist"),
        (["logs"], 102, "does not exist"),
        (["stop"], 102, "does not exist"),
        (["status"], 102, "no fleet"),
        (["train", "none.py"], 2, "none.py"),
        (["train", "directory"], 2, "directory"),
        (["train", "broken.py"], 2, "broken.py:2"),
        (["train", "notes.ipynb"], 2, "notebook"),
        (["train"], 2, "SCRIPT"),
        (["up", "--workers", "0"], 2, "at least 1 worker"),
        (["up", "--workers", "-1"], 2, "at least 1 worker"),
        (["up", "--workers", "two"], 2, "two"),
        (["up", "--gpu", "abacus"], 2, "abacus"),
        (["up", "--gpu", "t4", "--zone", "the moon"], 2, "the moon"),
        (["up", "--gpu", "t4"], 10, "Google Cloud"),
        (["up", "--provider", "local", "--max-duration", "2h"], 2, "--max-duration"),
        (["extend", "2h"], 102, "does not exist"),
        (["extend", "soon"], 2, "soon"),
        (["gc", "--project", "p"], 10, "Google Cloud"),
        (["up", "--provider", "moon"], 2, "moon"),
        (["up", "--fleet", "Not A Name"], 2, "Not A Name"),
        (["up", "--wrokers", "2"], 2, "--wrokers"),
        (["fly"], 2, "fly"),
        (["train", "task.py", "--data", "nowhere"], 2, "nowhere"),
        (["train", "task.py", "--env", "TF_CONFIG=1"], 2, "TF_CONFIG"),
        (["logs", "--worker", "nine"], 2, "nine"),
    ],
)
def test_user_errors_without_a_fleet_are_refused(
    program: Program, arguments: list[str], code: int, message: str
) -> None:
    program.script("task.py", "print('x')\n")
    program.script("broken.py", "print('x')\nif:\n")
    program.script("notes.ipynb", "{}")
    (program.directory / "directory").mkdir()
    ran = program.run(*arguments, code=code, env=NO_CREDENTIALS)
    assert message in ran.err
    assert "next:" in ran.err or "hint:" in ran.err
    lines = [line for line in ran.err.splitlines() if not line.startswith("waiting for ")]  # on a busy computer
    assert len(lines) <= 4
    assert not ran.out
    assert not list((program.state / "local").glob("*"))


def test_user_errors_with_a_fleet_are_refused(program: Program) -> None:
    program.script("task.py", "print('x')\n")
    program.run("up", "--workers", "2")
    other = program.run("up", "--workers", "3", "--python", "/usr/bin/env", code=2)
    assert "already up with other settings" in other.err
    assert "/usr/bin/env" in other.err
    again = program.run("up")
    assert "already up" in again.err + again.text
    refusal = program.run("extend", "2h", code=2).err
    assert "no deletion time" in refusal
    assert refusal.endswith("next:  fleet status\n")
    assert "created by local" in program.run("up", "--gpu", "t4", code=2).err
    assert "no job" in program.run("logs", code=102).err
    assert "worker-7" in program.run("logs", "--worker", "7", code=102).err
    assert program.run("train", "../elsewhere/task.py", code=2).err
    program.script("../elsewhere/task.py", "print('x')\n")
    assert "outside" in program.run("train", "../elsewhere/task.py", "--workdir", ".", code=2).err
    assert program.run("logs", "--job", "no-such-job", code=102).err


def test_errors_in_fleet_toml_are_reported_by_each_command_that_reads_it(program: Program) -> None:
    program.script("../fleet.toml", "[fleet]\nworker = 2\n")
    for arguments in (["up"], ["logs"], ["doctor"], ["train", "task.py"]):
        ran = program.run(*arguments, code=2)
        assert "fleet.toml: unknown key 'worker' in [fleet]" in ran.err
        assert "did you mean workers?" in ran.err
    assert "does not exist" in program.run("logs", "--fleet", "demo", code=102).err  # does not read fleet.toml
    program.script("../fleet.toml", '[gce]\nlabels = { fleet = "vision" }\n')
    assert program.run("up", "--dry-run", code=2).err.endswith("next:  fleet up --help\n")
    assert not program.state.exists()


def test_doctor_reports_that_a_local_fleet_is_possible(program: Program) -> None:
    ran = program.run("doctor")
    assert {line.split()[0] for line in ran.text.splitlines() if not line.startswith(" ")} == {"ok"}
    checks = [event for event in program.run("doctor", "-o", "json").events if event["event"] == "checked"]
    assert {event["subject"] for event in checks} >= {"sshd", "tensorflow", "directory"}
    assert program.run("doctor", "--provider", "gce", code=10, env=NO_CREDENTIALS).text.startswith(
        "missing  credentials"
    )
    assert not program.state.exists()


def test_user_errors_are_objects_with_json_output(program: Program) -> None:
    ran = program.run("train", "none.py", "-o", "json", code=2)
    error = ran.events[-1]
    assert error["event"] == "error"
    assert error["exit_code"] == 2
    assert "none.py" in error["message"]


def test_status_of_a_fleet_without_any_sshd_offers_its_repair(program: Program) -> None:
    program.run("up", "--workers", "2", "--fleet", "s")
    for listener in program.listeners():
        listener.kill()
    ran = program.run("status", code=13)
    assert "no answer" in ran.text
    assert ran.messages == "error: no host of fleet 's' answers\nnext:  fleet up --fleet s\n"
