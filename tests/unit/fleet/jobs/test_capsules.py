from __future__ import annotations

from pathlib import Path

import pytest

import fleet.cli.app  # noqa: F401 - adds the commands
from fleet.cli.rerun import split_train
from fleet.errors import CancelledError, UsageError
from fleet.events import Note
from fleet.jobs.capsules import Capsule, check_repetition, confirm_capsule, repeat, without_logins
from fleet.services import Services
from fleet.state import Store, TrainCommand
from fleet.steps import Again
from tests.unit.fleet.clouds import Kept


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
    command = TrainCommand(str(project), tuple(options))
    assert repeat(command, split_train(options)) == ([*repeated, "--workdir", "."], [])


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


def test_logins_in_urls_are_left_out() -> None:
    text = "--index-url https://ann:sesame@host.example/simple\nx @ git+https://token@host.example/x"
    assert "sesame" not in without_logins(text)
    assert "token" not in without_logins(text)
    assert "https://host.example/simple" in without_logins(text)


def confirm(capsule: Capsule, answer: bool | None, *, dry_run: bool = False) -> list[str]:
    """Return what is shown before a capsule runs; `answer` is the answer of the user, None without a terminal."""
    asked = None if answer is None else lambda _: answer
    shown = Kept()
    services = Services(Store(Path("none")), lambda _: True, confirm_keys=asked)
    confirm_capsule(capsule, ["task.py", "a\x1b"], services, shown, dry_run=dry_run)
    return [note.text for note in shown.events if isinstance(note, Note)]


def test_variables_of_a_capsule_are_copied_only_with_consent() -> None:
    capsule = Capsule(("TOKEN",), ("--index-url https://stranger.example/simple",))
    shown = confirm(capsule, True)
    assert shown[0] == "the capsule runs: task.py $'a\\x1b'"
    assert shown[1] == "the capsule installs packages with --index-url https://stranger.example/simple"
    with pytest.raises(CancelledError):
        confirm(Capsule(("TOKEN",)), False)
    with pytest.raises(UsageError, match="requires a terminal: TOKEN") as error:
        confirm(Capsule(("TOKEN",)), None)
    assert error.value.next_steps == (Again({"--env": "TOKEN"}),)
    with pytest.raises(UsageError, match="requires a terminal: A, B"):
        confirm(Capsule(("A", "B")), None)
