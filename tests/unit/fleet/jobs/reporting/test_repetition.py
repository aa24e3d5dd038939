from __future__ import annotations

from pathlib import Path

import pytest

import fleet.cli.app  # noqa: F401 - adds the commands
from fleet.cli.rerun import split_train
from fleet.errors import CancelledError, UsageError
from fleet.events import Event, Note
from fleet.jobs.reporting.copying import without_logins
from fleet.jobs.reporting.repetition import (
    Capsule,
    check_repetition,
    confirm_capsule,
    located,
    repeat,
    variables_in,
    version_changes,
)
from fleet.services import Services
from fleet.state import Store, TrainCommand
from fleet.steps import Again


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "task.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "vars").write_text("A=secret\nB=hidden\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "repeated"),
    [
        (["sub/task.py", "--restarts", "2"], ["task.py", "--restarts", "2"]),
        (["--workdir", ".", "sub/task.py"], ["sub/task.py"]),
        (["--workdir=.", "--chief", "./sub/task.py"], ["--chief", "sub/task.py"]),
        (["-m", "sub.task", "--min-workers=1"], ["-m", "sub.task", "--min-workers=1"]),
        (["-eK=secret", "--env", "L=hidden", "--env=M"], ["--env", "K", "--env", "L", "--env", "M"]),
        (["--secret", "K=@file", "--secret=L"], ["--secret", "K", "--secret", "L"]),
        (["--env-file", "vars"], ["--env", "A", "--env", "B"]),
        (["--data", "data", "--data", "data:x/", "--data=data:y"],
         ["--data", "data:data", "--data", "x/data:x/data", "--data", "y:y"]),
        (["--requirements", "other.txt", "--no-requirements", "-m", "x"], ["-m", "x"]),
    ],
)  # fmt: skip
def test_paths_are_inside_the_uploaded_files_and_values_of_variables_are_left_out(
    options: list[str], repeated: list[str], project: Path
) -> None:
    repetition = repeat(TrainCommand(str(project), tuple(options)), split_train(options))
    assert repetition.options == (*repeated, "--workdir", ".")
    assert not repetition.notes


def test_a_missing_file_of_variables_is_reported(project: Path) -> None:
    options = ["--env-file", "gone", "-m", "x"]
    (note,) = repeat(TrainCommand(str(project), tuple(options)), split_train(options)).notes
    assert note.startswith("the variables of --env-file gone are left out")


@pytest.mark.parametrize(
    "options",
    [
        ["--secret", "K=@/home/ann/.ssh/id_rsa"], ["--env", "K=V"], ["--env-file", "/x"], ["--workdir", "/"],
        ["--data", "/etc:etc"], ["--data", "../x:../x"], ["--requirements=/x"], ["--pull", "/x"], ["/x/task.py"],
        ["../task.py"], ["gone.py"], ["sub/task.py", "sub/task.py"], ["--unknown"], ["--from-capsule", "x"],
        ["--data", "sub:x"], ["--workdir=sub"], ["-eK=V"],
    ],
)  # fmt: skip
def test_options_that_name_anything_else_on_this_computer_are_refused(options: list[str], project: Path) -> None:
    with pytest.raises(UsageError):
        check_repetition(split_train(options), project)


def test_paths_of_a_capsule_are_located_in_its_directory(project: Path) -> None:
    words = split_train(["sub/task.py", "--data", "data:data", "--restarts", "2", "--workdir", "."])
    check_repetition(words, project)
    assert list(located(words, project)) == [
        f"{project}/sub/task.py", "--data", f"{project}/data:data", "--restarts", "2", "--workdir", str(project),
    ]  # fmt: skip


def test_changed_versions_name_the_hosts() -> None:
    now = {"worker-0": {"python": "3.12.1"}, "worker-1": {"python": "3.11.7", "keras": "3.5"}}
    assert list(version_changes({"python": "3.11.7", "keras": "3.5"}, now)) == [
        "the job had python 3.11.7; worker-0 has python 3.12.1",
        "the job had keras 3.5; worker-0 has no keras",
    ]


def test_logins_in_urls_are_left_out() -> None:
    text = "--index-url https://ann:sesame@host.example/simple\nx @ git+https://token@host.example/x"
    assert "sesame" not in without_logins(text)
    assert "token" not in without_logins(text)
    assert "https://host.example/simple" in without_logins(text)


class Shown:
    """Keeps the notes that a command shows."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def emit(self, event: Event) -> None:
        assert isinstance(event, Note)
        self.texts.append(event.text)

    def close(self) -> None:
        pass


def confirm(capsule: Capsule, answer: bool | None, *, dry_run: bool = False) -> list[str]:
    """Return what is shown before a capsule runs; `answer` is the answer of the user, None without a terminal."""
    asked = None if answer is None else lambda _: answer
    shown = Shown()
    services = Services(Store(Path("none")), lambda _: True, confirm_keys=asked)
    confirm_capsule(capsule, ["task.py", "a\x1b"], services, shown, dry_run=dry_run)
    return shown.texts


def test_a_capsule_is_shown_before_it_runs() -> None:
    capsule = Capsule(("TOKEN",), ("--index-url https://stranger.example/simple",))
    shown = [
        "the capsule runs: task.py $'a\\x1b'",
        "the capsule installs packages with --index-url https://stranger.example/simple",
        "the capsule copies variables of this computer: TOKEN",
    ]
    assert confirm(capsule, True) == confirm(capsule, None, dry_run=True) == shown
    assert confirm(Capsule(), None) == shown[:1]


def test_variables_of_a_capsule_are_copied_only_with_consent() -> None:
    with pytest.raises(CancelledError):
        confirm(Capsule(("TOKEN",)), False)
    with pytest.raises(UsageError, match="requires a terminal: TOKEN") as error:
        confirm(Capsule(("TOKEN",)), None)
    assert error.value.next_steps == (Again({"--env": "TOKEN"}),)
    with pytest.raises(UsageError, match="requires a terminal: A, B"):
        confirm(Capsule(("A", "B")), None)


def test_variables_are_those_of_all_spellings() -> None:
    assert variables_in(split_train(["-eA", "--env", "B", "--env=C", "--secret", "D", "x.py"])) == {
        "A",
        "B",
        "C",
        "D",
    }
