"""Command lines that cannot be parsed: one sentence, and commands that work when pasted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli import app as cli


def error_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.run([*arguments]) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("train task.py --epochs 5", "fleet train task.py -- --epochs 5"),
        ("train task.py data.csv --epochs=5 -x", "fleet train task.py -- data.csv --epochs=5 -x"),
        ("train a.py --epochs 5 --restarts 3 -- --lr 0.1", "fleet train a.py --restarts 3 -- --epochs 5 --lr 0.1"),
        ("train -m trainer.task --epochs 5", "fleet train -m trainer.task -- --epochs 5"),
        ("check task.py --title '$HOME'", "fleet check task.py -- --title ''\"'\"'$HOME'\"'\"''"),
        ("agent task.py --epochs 5", "fleet agent task.py -- --epochs 5"),
        ("train --epochs 5 task.py", "fleet train --help"),  # an option before the script is not moved
    ],
)
def test_options_of_the_script_go_after_a_double_dash(
    capsys: pytest.CaptureFixture[str], typed: str, command: str
) -> None:
    lines = error_lines(capsys, *typed.split())
    assert lines[1].startswith("hint:  ")
    assert lines[1].endswith("arguments of the script go after SCRIPT and --")
    assert lines[2] == f"next:  {command}"


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("extend", ["error: missing argument 'TIME'", "next:  fleet extend --help"]),
        ("train --restarts x", ["error: invalid value for '--restarts': 'x' is not a whole number"]),
        ("tensorboard --port 0", ["error: invalid value for '--port': 0 is not between 1 and 65535"]),
        ("train --restarts", ["error: option '--restarts' requires a value", "next:  fleet train --help"]),
        ("bake demo", ["error: unexpected argument 'demo'", "next:  fleet bake --help"]),
        ("logs worker-1", ["error: 'worker-1' is a task, not a job", "next:  fleet logs --worker worker-1"]),
        ("rerun x.capsule.zip", ["error: 'x.capsule.zip' is a capsule", "next:  fleet train --from-capsule x.cap"]),
        ("stop a --job b", ["error: JOB is given twice: 'a' and 'b'", "next:  fleet stop a"]),
        ("-q", ["error: no such option: '-q'", "next:  fleet --help"]),
        ("trian", ["error: unknown command 'trian'", "hint:  did you mean 'train'?", "next:  fleet --help"]),
    ],
)
def test_a_mistake_is_explained(capsys: pytest.CaptureFixture[str], typed: str, lines: list[str]) -> None:
    printed = error_lines(capsys, *typed.split())
    assert [line[: len(begin)] for line, begin in zip(printed, lines, strict=False)] == lines


@pytest.mark.parametrize("command", ["stop", "pull", "report", "rerun", "logs", "jobs"])
def test_a_job_is_accepted_as_an_argument_and_as_an_option(
    capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    for words in (("-1",), ("--job", "-1"), ("baseline",), ("--job=baseline",)):
        assert cli.run([command, *words]) == 102  # the arguments were parsed; no fleet exists
        assert "does not exist" in capsys.readouterr().err
