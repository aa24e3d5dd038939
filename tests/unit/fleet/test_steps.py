from __future__ import annotations

import pytest

from fleet.steps import Shell, Step, step_of


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Step("logs", "-f"), "fleet logs --fleet b -f"),
        (Step("down", fleet="c"), "fleet down --fleet c"),
        (Step("train", "--fleet", "c", "task.py"), "fleet train --fleet c task.py"),
        (Step("up", "--fleet=c"), "fleet up --fleet=c"),
        (Step("train", "my task.py", "--", "--fleet", "x"), "fleet train --fleet b 'my task.py' -- --fleet x"),
        (Step("gc", "--yes"), "fleet gc --yes"),
        (Step("--help"), "fleet --help"),
        (Shell("gcloud auth login"), "gcloud auth login"),
    ],
)
def test_a_step_names_the_fleet_if_the_command_takes_one(step: Step | Shell, line: str) -> None:
    assert step.text("b") == line


def test_commands_of_errors_are_steps() -> None:
    assert step_of(("fleet", "up", "--ssh-from", "a b")) == Step("up", "--ssh-from", "a b")
    assert step_of(("gcloud", "config", "set", "project", "a b")) == Shell("gcloud config set project 'a b'")
    assert step_of('gcloud projects list --filter="$USER"') == Shell('gcloud projects list --filter="$USER"')
