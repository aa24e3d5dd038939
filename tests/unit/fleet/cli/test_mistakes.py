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
        ("train task.py --epochs=5", "fleet train task.py -- --epochs=5"),
        ("train task.py --epochs 5 --lr 0.1 -x", "fleet train task.py -- --epochs 5 --lr 0.1 -x"),
        ("train task.py data.csv --epochs 5", "fleet train task.py -- data.csv --epochs 5"),
        (
            "train --fleet demo task.py --epochs 5 --restarts 3 -o json",
            "fleet train --fleet demo task.py --restarts 3 -o json -- --epochs 5",
        ),
        ("train task.py --epochs 5 -- --lr 0.1", "fleet train task.py -- --epochs 5 --lr 0.1"),
        ("train -m trainer.task --epochs 5", "fleet train -m trainer.task -- --epochs 5"),
        ("check task.py --epochs 5", "fleet check task.py -- --epochs 5"),
        ("agent task.py --epochs 5", "fleet agent task.py -- --epochs 5"),
    ],
)
def test_options_of_the_script_go_after_a_double_dash(
    capsys: pytest.CaptureFixture[str], typed: str, command: str
) -> None:
    lines = error_lines(capsys, *typed.split())
    assert lines[1] == "hint:  arguments of the script go after SCRIPT and --"
    assert lines[2:] == [f"next:  {command}"]


def test_words_of_the_script_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_lines(capsys, "train", "task.py", "--title", "a b; $HOME")[-1] == (
        "next:  fleet train task.py -- --title 'a b; $HOME'"
    )


def test_an_option_before_the_script_is_not_moved(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_lines(capsys, "train", "--epochs", "5", "task.py")[-1] == "next:  fleet train --help"


def test_a_misspelled_option_is_offered_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_lines(capsys, "train", "task.py", "--restart", "3")[1:] == [
        "hint:  did you mean --restarts? arguments of the script go after SCRIPT and --",
        "next:  fleet train task.py --restarts 3",
        "       fleet train task.py -- --restart 3",
    ]
    assert error_lines(capsys, "up", "--wrokers", "2")[1:] == [
        "hint:  did you mean --workers?",
        "next:  fleet up --workers 2",
    ]


def test_an_option_of_another_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpu is an option of fleet up" in error_lines(capsys, "train", "task.py", "--gpu", "t4")[1]
    assert "--workers is an option of fleet up" in error_lines(capsys, "bake", "--workers", "3")[1]
    assert error_lines(capsys, "down", "-n", "3")[1:] == ["next:  fleet down --help"]


def test_an_option_of_other_tools_is_translated(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, meant, command in (
        ("up -n 3 --gpu t4", "--workers", "fleet up --workers 3 --gpu t4"),
        ("logs --tail 5", "--lines", "fleet logs --lines 5"),
        ("down --force", "--yes", "fleet down --yes"),
    ):
        assert error_lines(capsys, *typed.split())[1:] == [f"hint:  did you mean {meant}?", f"next:  {command}"]


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("extend", ["error: missing argument 'TIME'", "next:  fleet extend --help"]),
        ("extend 4x", ["error: invalid value for 'TIME': invalid duration '4x'; use seconds, 90s, 10m, or 2h"]),
        ("train --restarts x", ["error: invalid value for '--restarts': 'x' is not a whole number"]),
        ("train --restarts -1", ["error: invalid value for '--restarts': -1 is less than 0"]),
        ("tensorboard --port 0", ["error: invalid value for '--port': 0 is not between 1 and 65535"]),
        ("train --restarts", ["error: option '--restarts' requires a value", "next:  fleet train --help"]),
        (
            "train --checkpoint-bandwidth x a.py",
            ["error: invalid value for '--checkpoint-bandwidth': 'x' is not a number"],
        ),
        ("bake demo", ["error: unexpected argument 'demo'", "next:  fleet bake --help"]),
        (
            "down demo --yes",
            ["error: unexpected argument 'demo'", "next:  fleet down --fleet demo --yes", "       fleet down --help"],
        ),
        ("up 4", ["error: unexpected argument '4'", "next:  fleet up --workers 4"]),
        ("logs worker-1", ["error: 'worker-1' is a task, not a job", "next:  fleet logs --worker worker-1"]),
        (
            "rerun x.capsule.zip",
            ["error: 'x.capsule.zip' is a capsule, not a job", "next:  fleet train --from-capsule x.capsule.zip"],
        ),
        ("stop a --job b", ["error: JOB is given twice: 'a' and 'b'", "next:  fleet stop a"]),
        (
            "train --workers 4 t.py",
            [
                "error: fleet train has no option '--workers'",
                "hint:  --workers is an option of fleet up; arguments of the script go after SCRIPT and --",
                "next:  fleet up --workers 4",
            ],
        ),
        (
            "train t.py --gpus 2",
            [
                "error: fleet train has no option '--gpus'",
                "hint:  fleet up has --gpu; arguments of the script go after SCRIPT and --",
            ],
        ),
        ("status a b", ["error: unexpected argument 'a b'", "next:  fleet status --help"]),
        ("-q", ["error: fleet has no option '-q'", "next:  fleet --help"]),
    ],
)
def test_a_command_line_that_cannot_be_parsed(
    capsys: pytest.CaptureFixture[str], typed: str, lines: list[str]
) -> None:
    assert error_lines(capsys, *typed.split())[: len(lines)] == lines


@pytest.mark.parametrize("command", ["stop", "pull", "report", "rerun", "logs", "jobs"])
def test_a_job_is_accepted_as_an_argument_and_as_an_option(
    capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    for words in (("-1",), ("--job", "-1"), ("baseline",), ("--job", "baseline"), ("--job=baseline",)):
        assert cli.run([command, *words]) == 102  # the arguments were parsed; no fleet exists
        assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("extra", ["next:  fleet --help"]),
        ("shell", ["hint:  did you mean fleet ssh?", "next:  fleet ssh --help"]),
        ("trian", ["hint:  did you mean fleet train?", "next:  fleet train --help"]),
        ("ps", ["hint:  did you mean fleet status?", "next:  fleet status --help"]),
        ("destroy", ["hint:  did you mean fleet down?", "next:  fleet down --help"]),
        ("attach", ["hint:  did you mean fleet logs -f?", "next:  fleet logs --help"]),
        ("version", ["hint:  did you mean fleet --version?", "next:  fleet --version"]),
    ],
)
def test_an_unknown_command(capsys: pytest.CaptureFixture[str], word: str, lines: list[str]) -> None:
    assert error_lines(capsys, word) == [f"error: unknown command {word!r}", *lines]
