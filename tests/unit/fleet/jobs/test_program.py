"""The command that a job runs, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import app as cli
from fleet.cli.jobs import check, train
from fleet.cli.jobs.train import TrainRequest
from fleet.errors import JobFailedError, UsageError
from fleet.jobs.program import ProgramRequest, add_next_steps, find
from fleet.state import TrainCommand
from tests.unit.train.script.test_script import write
from train.diagnosis.texts import ARGUMENTS_HINT
from train.diagnosis.verdict import Cause, Verdict


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs a command line, and returns the request of its verb."""
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    requests: list[Any] = []
    monkeypatch.setattr(train, "run", lambda request, *_: requests.append(request))
    monkeypatch.setattr(check, "run", lambda request, trial_s, _: requests.append((request.script, trial_s)))

    def ask(*arguments: str) -> Any:
        assert cli.run(list(arguments)) == 0
        return requests.pop()

    return ask


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["task.py"], ("task.py", "", (), ())),
        (["task.py", "--", "--epochs", "3", "--", "x"], ("task.py", "", (), ("--epochs", "3", "--", "x"))),
        (["task.py", "a", "-d", "--", "b"], ("task.py", "", (), ("a", "b"))),
        (["-m", "pkg.task"], ("", "pkg.task", (), ())),
        (["-m", "pkg.task", "a", "--", "--b"], ("", "pkg.task", (), ("a", "--b"))),
        (["--", "bash", "run.sh", "-d"], ("", "", ("bash", "run.sh", "-d"), ())),
        (["-d"], ("", "", (), ())),
        ([], ("", "", (), ())),
    ],
)
def test_arguments_before_and_after_the_double_dash(
    asked: Callable[..., TrainRequest], words: list[str], wanted: tuple[object, ...]
) -> None:
    request = asked("train", *words)
    assert (request.script, request.module, request.command, request.arguments) == wanted


# --- requirements ---------------------------------------------------------------------------------------------------


def wanted(**fields: Any) -> str | None:
    requirements = find(TrainRequest("default", **fields)).requirements
    return requirements.text if requirements else None


def test_projects_take_precedence_and_are_also_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = '[project]\ndependencies = ["{}"]\n'
    write(tmp_path, {"pyproject.toml": project.format("top"), "scripts/task.py": "", "requirements.txt": "other\n"})
    write(tmp_path, {"job/task.py": "", "job/pyproject.toml": project.format("near"), "job/requirements.txt": "no\n"})
    write(tmp_path, {"old/task.py": "", "old/requirements.txt": "old\n", "old/pyproject.toml": "[tool.ruff]\n"})
    write(tmp_path, {"poetry/task.py": "", "poetry/pyproject.toml": "[tool.poetry.dependencies]\na = '1'\n"})
    assert wanted(script="scripts/task.py") == "top\n"
    assert wanted(script="job/task.py") == "near\n"
    assert wanted(script="old/task.py") == "old\n"
    assert wanted(script="old/task.py", requirements="job/pyproject.toml") == "near\n"
    monkeypatch.chdir(tmp_path / "old")
    assert wanted(script="../scripts/task.py") is None
    located = find(TrainRequest("default", script="../poetry/task.py"))
    assert located.requirements is None
    assert "[tool.poetry.dependencies] is not read" in located.entry.note
    write(tmp_path, {"pyproject.toml": "[project]\ndependencies = 1\n"})
    with pytest.raises(UsageError, match="is not a list of requirements"):
        wanted(script="task.py", requirements="../pyproject.toml")


# --- warnings -------------------------------------------------------------------------------------------------------


def test_the_next_step_of_a_failed_job_does_not_need_the_script_any_more(tmp_path: Path) -> None:
    script = tmp_path / "task.py"
    script.write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n")
    request = ProgramRequest("demo", script=str(script))
    entry = find(request).entry
    assert entry.texts
    script.unlink()
    message = "task.py: error: the following arguments are required: --data"
    verdict = Verdict("worker-0", Cause.SCRIPT_EXCEPTION, "failed", (message,), hint=f"{ARGUMENTS_HINT}--data DATA")
    error = JobFailedError("job failed")
    add_next_steps(error, request, entry, verdict, TrainCommand(str(tmp_path), (str(script),)))
    assert "--data" in error.hint
