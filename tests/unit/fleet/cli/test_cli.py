from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.cli import app as cli
from fleet.cli import runtime
from fleet.cli.application import root_command
from fleet.cli.fleets import up
from fleet.errors import CancelledError, UsageError
from fleet.fleets.plan import UpRequest
from fleet.steps import Again, Step
from tests.settings import settings
from tests.unit.fleet.clouds import Kept


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


def test_a_bug_is_a_message_and_a_file(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(up, "run", fail)
    assert cli.run(["up"]) == 1
    error_output = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: by hand" in error_output
    assert "Traceback" not in error_output
    assert "ZeroDivisionError" in (state / "bug-report.txt").read_text()


def test_help_and_version_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-V"):
        assert cli.run([option]) == 0
        assert capsys.readouterr().out.startswith("fleet 0.")
    assert cli.run([]) == 0
    assert "Jobs:" in capsys.readouterr().out


def test_each_command_is_in_a_group_and_has_examples_that_parse() -> None:
    for name, command in root_command().commands.items():
        assert getattr(command, "rich_help_panel", None) in ("Start", "Fleets", "Hosts", "Jobs", "Results"), name
        summary = (command.help or "").partition("\n")[0]
        assert summary.endswith(".")
        assert len(summary) <= 60
        examples = (command.help or "").partition("\b\nExamples:\n")[2].splitlines()
        assert 2 <= len(examples) <= 3, name
        for example in examples:
            words = shlex.split(example.partition(" > ")[0])
            at = words.index("fleet")  # after srun or mpiexec
            assert words[at + 1] == name
            command.make_context(name, words[at + 2 :])


# --- next steps ---


@pytest.mark.parametrize(
    ("error", "typed", "lines"),
    [
        (
            UsageError("no", next_steps=[Again({})]),
            "up --workers 2 --gpu t4 -o lines",
            [],  # it has just failed, and nothing before it changes the outcome
        ),
        (CancelledError("no", next_steps=[Again({})]), "up --gpu t4 -o lines", ["fleet up --gpu t4 -o lines"]),
        (UsageError("no", next_steps=[Again({"--yes": True})]), "up --gpu t4", ["fleet up --yes --gpu t4"]),
        (UsageError("no", next_steps=[Again({"--workers": "3"})]), "up -w 2", ["fleet up --workers 3"]),
        (UsageError("no", next_steps=[Again({"--spot": None})]), "up --no-spot -w 2", ["fleet up -w 2"]),
        (
            UsageError("no", next_steps=[Step("down"), Again({}, "up"), Step("up")]),
            "up --fleet demo",
            ["fleet down --fleet demo", "fleet up --fleet demo"],
        ),
    ],
)
def test_the_typed_command_is_repeated_with_changes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: UsageError,
    typed: str,
    lines: list[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(up, "run", fail)
    assert cli.run(typed.split()) == error.exit_code
    error_lines = capsys.readouterr().err.splitlines()
    assert [line[7:] for line in error_lines[1:]] == lines


@pytest.mark.parametrize(
    ("command", "place", "message"),
    [
        ("train task.py -- --epochs 5", "fleet.jobs.program.find", "nothing was started"),
        ("status --fleet demo", "fleet.state.Store.need", "nothing was changed"),
        ("stop --grace 3", "fleet.state.Store.need", "nothing was changed"),
        ("logs j-1", "fleet.state.Store.need", "nothing was changed"),
    ],
)
def test_an_interrupted_command_reports_that_it_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, place: str, message: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    assert cli.run(command.split()) == 103
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"error: interrupted; {message}", f"next:  fleet {command}"]


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., UpRequest]:
    """Return a function that runs `fleet up` below a fleet.toml, and returns the request of its verb."""
    directory = tmp_path / "work"
    directory.mkdir()
    (tmp_path / "fleet.toml").write_text(
        '[fleet]\nname = "toml"\nworkers = 3\n[gce]\nproject = "file"\nspot = true\n'
    )
    monkeypatch.chdir(directory)
    for name in ("FLEET_NAME", "FLEET_GCE_PROJECT", "GOOGLE_CLOUD_PROJECT", "FLEET_GCE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    requests: list[UpRequest] = []
    monkeypatch.setattr(up, "run", lambda request, *_: requests.append(request))

    def ask(*arguments: str) -> UpRequest:
        assert cli.run(["up", *arguments]) == 0
        return requests.pop()

    return ask


def test_the_file_sets_what_nothing_else_sets(asked: Callable[..., UpRequest]) -> None:
    request = asked()
    assert (request.fleet, request.given) == ("toml", settings())
    assert request.defaults == settings(name="toml", provider="gce", workers=3, project="file", spot=True)


def test_the_command_line_goes_before_all(asked: Callable[..., UpRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_NAME", "env")
    request = asked("--fleet", "flag", "--project", "flag-project", "--no-spot")
    assert (request.fleet, request.given) == ("flag", settings(project="flag-project", spot=False))


# --- questions --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "wanted"), [("\n", True), ("y\n", True), ("Yes\n", True), ("n\n", False), ("?\n", False), ("", False)]
)
def test_a_question_is_answered_by_a_line_and_not_by_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, answer: str, wanted: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    sink = Kept()
    services = runtime.make_services(sink)
    assert (services.attended, services.confirm("Proceed?")) == (True, wanted)
    assert terminal.getvalue() == "Proceed? [Y/n] " + ("" if answer else "\n")
    assert sink.closed == 1  # the terminal is free for the question


def test_yes_confirms_and_without_a_terminal_no_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert runtime.make_services(yes=True).confirm("Proceed?")
    assert not runtime.make_services().attended


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--index-url", "https://reader:hunter2@index/simple"), "must not contain a password or token"),
        (("--pip-proxy", "http://hunter2@proxy"), "must not contain a password or token"),
        (("--index-url", "https://reader:hunter2@index/simple", "--worker", "3"), "no such option: '--worker'"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["up", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in " ".join(printed.err.split())
    assert "hunter2" not in printed.out + printed.err
