"""`fleet lint`: findings by file and line, the exit code, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli import app as cli
from tests.unit.train.lint.cases import script

LATE = script("@TF", "x = tf.constant(1)", "strategy = tf.distribute.MultiWorkerMirroredStrategy()")
HINTS = script("@READY", "model.fit(data, epochs=3)")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


def test_findings_are_printed_with_their_reason_and_fix(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "task.py").write_text("import os\nos.environ['TF_CONFIG'] = '{}'\n" + LATE)
    assert cli.run(["lint", "task.py"]) == 2
    output = capsys.readouterr()
    assert "task.py:6: MW101 error: MultiWorkerMirroredStrategy is created" in output.out
    assert "\n  why:  it fails: RuntimeError: " in output.out
    assert "\n  fix:  create the strategy before any other use" in output.out
    assert max(map(len, output.out.splitlines())) <= 80
    assert output.err.startswith("error: task.py has 1 error and 1 hint\n")
    assert "# fleet: ignore[MW101]" in output.err  # the rule of an error, not of another finding


def test_hints_leave_the_exit_code_0(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "task.py").write_text(HINTS + "input()  # fleet: ignore[MW701]\n")
    assert cli.run(["lint", "task.py", "-o", "json"]) == 0
    *_, finding, note = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["event"], finding["rule"], finding["severity"]) == ("finding", "MW405", "hint")
    assert note["text"] == "task.py has 1 hint"
    assert cli.run(["lint", "task.py", "--workers", "1"]) == 0
    assert "nothing found in task.py" in capsys.readouterr().err


def test_a_script_outside_of_the_working_directory_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "a").mkdir()
    (directory / "task.py").write_text("")
    assert cli.run(["lint", "task.py", "--workdir", "a"]) == 2
    assert capsys.readouterr().err.startswith("error: task.py is outside of the working directory a\n")
