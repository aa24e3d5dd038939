from __future__ import annotations

from pathlib import Path

import pytest

from fleet import cli
from fleet.commands import up


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


def test_a_bug_is_a_sentence_and_a_file(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(up, "run", fail)
    assert cli.run(["up"]) == 1
    told = capsys.readouterr().err
    assert "a bug of fleet: ZeroDivisionError: by hand" in told
    assert "Traceback" not in told
    assert "ZeroDivisionError" in (state / "bug-report.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["train", "-o", "json", "x.py"], True),
        (["train", "--output=json", "x.py"], True),
        (["train", "x.py", "--", "-o", "json"], False),
        (["train", "json"], False),
    ],
)
def test_json_is_seen_before_the_command_line_is_parsed(arguments: list[str], wanted: bool) -> None:
    assert cli._wants_json(arguments) is wanted


def test_help_and_version_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fleet 0.")
    assert cli.run(["train", "--help"]) == 0


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run([])
    told = capsys.readouterr()
    assert "Commands:" in told.out
    assert code == 0
