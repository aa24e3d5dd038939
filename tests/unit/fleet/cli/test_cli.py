from __future__ import annotations

import io
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.cli import app as cli
from fleet.cli import runtime
from fleet.cli.application import root_command
from fleet.cli.fleets import up
from fleet.errors import CancelledError, UsageError
from fleet.events import Event, Note
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
    assert cli.is_json_requested(arguments) is wanted


def test_help_and_version_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-V"):
        assert cli.run([option]) == 0
        assert capsys.readouterr().out.startswith("fleet 0.")
    assert cli.run([]) == 0
    assert "Jobs:" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [52, 80])
def test_help_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("up", "train", "logs"):
        assert cli.run([command, "--help"]) == 0
        text = capsys.readouterr().out
        prose = [
            line for line in text.splitlines() if not line.startswith(("    fleet", "  -")) and " " in line.strip()
        ]
        assert [line for line in prose if len(line) > columns and line.startswith(" ")] == []


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
        (UsageError("no", next_steps=[Again({"--chief": True}), Step("status")]), "up", ["fleet status"]),
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


def test_a_train_that_is_interrupted_early_started_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fleet.jobs.program.find", interrupted)
    assert cli.run(["train", "task.py", "--", "--epochs", "5"]) == 103
    assert capsys.readouterr().err.splitlines() == [
        "error: interrupted; nothing was started",
        "next:  fleet train task.py -- --epochs 5",
    ]


@pytest.mark.parametrize("command", ["status --fleet demo", "stop --grace 3", "logs j-1", "jobs"])
def test_an_interrupted_command_reports_that_it_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("fleet.state.Store.need", interrupted)
    assert cli.run(command.split()) == 103
    assert capsys.readouterr().err.splitlines() == [
        "error: interrupted; nothing was changed",
        f"next:  fleet {command}",
    ]


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


def test_every_option_comes_where_it_belongs(asked: Callable[..., UpRequest]) -> None:
    request = asked(
        *["-w", "4", "--provider", "gce", "--python", "/p", "--package", "a<2,>1", "--package", "b", "--gpu", "t4:2"],
        *["--machine-type", "n1-standard-8", "--zone", "us-central1,us-west1-a", "--zone", "europe-west4", "--spot"],
        *["--max-duration", "90m", "--retry-until-up", "--project", "p", "--image", "i", "--disk-size", "200"],
        *["--network", "n", "--subnet", "s", "--iap", "--ssh-from", "203.0.113.0/24", "--scopes", "cloud-platform"],
        *["--service-account", "a@b", "--dry-run", "--yes"],
    )
    assert (request.dry_run, request.retry_until_up) == (True, True)
    assert request.given == settings(
        provider="gce",
        workers=4,
        python="/p",
        packages=("a<2,>1", "b"),
        project="p",
        zones=("us-central1", "us-west1-a", "europe-west4"),
        gpu="t4:2",
        machine_type="n1-standard-8",
        spot=True,
        max_duration_s=5400,
        image="i",
        disk_gb=200,
        network="n",
        subnetwork="s",
        external=False,
        ssh_from=("203.0.113.0/24",),
        scopes=("cloud-platform",),
        service_account="a@b",
    )


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
    assert runtime.make_services(yes=True).attended
    assert runtime.make_services(yes=True).confirm("Proceed?")
    assert not runtime.make_services().attended


class Exclusive:
    """A sink that fails if two threads are in it at once, or if its reader is gone."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.events = 0
        self.is_broken = False

    def emit(self, _event: Event) -> None:
        assert self.busy.acquire(blocking=False)
        self.events += 1
        self.busy.release()
        if self.is_broken:
            raise BrokenPipeError

    def close(self) -> None:
        pass


def test_events_of_several_threads_are_passed_on_one_at_a_time() -> None:
    inner = Exclusive()
    sink = runtime.CommandSink(inner)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: sink.emit(Note(str(number))), range(2000)))
    assert inner.events == 2000
    assert not sink.unread
    inner.is_broken = True
    sink.emit(Note("unread"))
    assert sink.unread


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--index-url", "https://reader:hunter2@index/simple"), "must not contain a password or token"),
        (
            ("--index-url=https://a:hunter2@index", "--workers", "x"),
            "must not contain a password or token",
        ),
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
