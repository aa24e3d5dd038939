from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli import app as cli
from fleet.cli.jobs.lint import LintRequest, run
from fleet.errors import UsageError
from fleet.events import Event, Note
from tests.next_steps import next_lines
from tests.unit.train.lint.cases import script
from train.lint.finding import Finding

LATE = script("@TF", "x = tf.constant(1)", "strategy = tf.distribute.MultiWorkerMirroredStrategy()")
HINTS = script("@READY", "model.fit(data, epochs=3)")


class Kept:
    """A sink that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def linted(script: Path | str, **settings: str | int) -> tuple[list[Event], UsageError | None]:
    sink = Kept()
    workers, workdir = int(settings.get("workers", 2)), str(settings.get("workdir", ""))
    try:
        run(LintRequest(script=str(script), workdir=workdir, workers=workers), sink)
    except UsageError as error:
        return sink.events, error
    return sink.events, None


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


def test_an_error_ends_with_exit_code_2(directory: Path) -> None:
    (directory / "task.py").write_text(LATE)
    (finding,), error = linted("task.py")
    assert isinstance(finding, Finding)
    assert finding.location == "task.py:4"
    assert error is not None
    assert (error.message, error.exit_code) == ("task.py has 1 error", 2)
    assert "# fleet: ignore[MW101]" in error.hint


def test_the_rule_of_an_error_is_the_one_to_suppress(directory: Path) -> None:
    hint = "import os\nos.environ['TF_CONFIG'] = '{}'\n"
    (directory / "task.py").write_text(hint + LATE)
    findings, error = linted("task.py")
    assert [item.rule for item in findings if isinstance(item, Finding)] == ["MW103", "MW101"]
    assert error is not None
    assert "# fleet: ignore[MW101]" in error.hint


def test_hints_do_not(directory: Path) -> None:
    (directory / "task.py").write_text(HINTS)
    (finding, note), error = linted("task.py")
    assert isinstance(finding, Finding)
    assert (finding.rule, error) == ("MW405", None)
    assert note == Note("task.py has 1 hint")
    assert linted("task.py", workers=1)[0] == [Note("nothing found in task.py")]


def test_findings_are_counted(directory: Path) -> None:
    piece = "input()\nif x:\n    input()\nif y:\n    input()\n"
    (directory / "task.py").write_text(HINTS + piece)
    _, error = linted("task.py")
    assert error is not None
    assert error.message == "task.py has 1 error, 2 warnings and 1 hint"


def test_modules_are_named_as_the_user_sees_them(directory: Path) -> None:
    (directory / "src" / "lib").mkdir(parents=True)
    (directory / "src" / "lib" / "ask.py").write_text("# coding: latin-1\nname = 'é'\ninput()\n", encoding="latin-1")
    (directory / "src" / "task.py").write_text("import lib.ask\n")
    (finding,), _ = linted("src/task.py")
    assert isinstance(finding, Finding)
    assert finding.location == "src/lib/ask.py:3"
    (directory / "src" / "lib" / "task.py").write_text("from src.lib import ask\n")
    (finding,), _ = linted("src/lib/task.py", workdir=".")
    assert isinstance(finding, Finding)
    assert finding.location == "src/lib/ask.py:3"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("task.py", "x = 1\nx =\n", "task.py:2: invalid syntax"),
        ("task.ipynb", "{}", "task.ipynb is a notebook, not a script"),
        ("task.txt", "", "task.txt is not a Python script"),
        ("", "", "there is no script other.py"),
    ],
)
def test_what_cannot_be_read(directory: Path, name: str, content: str, message: str) -> None:
    if name:
        (directory / name).write_text(content)
    events, error = linted(name or "other.py")
    assert error is not None
    assert (events, error.message) == ([], message)
    if name.endswith(".ipynb"):
        assert next_lines(error) == "jupyter nbconvert --to script task.ipynb"


def test_a_script_outside_of_its_directory_is_refused(directory: Path) -> None:
    (directory / "a").mkdir()
    (directory / "task.py").write_text("")
    _, error = linted("task.py", workdir="a")
    assert error is not None
    assert error.message == "task.py is outside of the working directory a"


def test_the_command_prints_findings(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "task.py").write_text(LATE)
    assert cli.run(["lint", "task.py"]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("task.py:4: MW101 error: MultiWorkerMirroredStrategy is created")
    assert "\n  why:  it fails: RuntimeError: " in output.out
    assert "\n  fix:  create the strategy before any other use" in output.out
    assert max(map(len, output.out.splitlines())) <= 80
    assert output.err.startswith("error: task.py has 1 error\n")


def test_the_command_writes_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "task.py").write_text(
        script("@READY", "input()  # fleet: ignore[MW701]", "model.fit(data, epochs=3)")
    )
    assert cli.run(["lint", "task.py", "-o", "json"]) == 0
    _, finding, note = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["event"], finding["rule"], finding["severity"]) == ("finding", "MW405", "hint")
    assert note["text"] == "task.py has 1 hint"
