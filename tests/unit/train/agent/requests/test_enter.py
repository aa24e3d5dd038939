from __future__ import annotations

from train.agent.host.spawn import hook_environment
from train.agent.requests.enter import without_hook


def test_the_environment_of_a_task_is_without_the_hook() -> None:
    for env in ({"A": "1"}, {"A": "1", "PYTHONPATH": "/mine:/other"}, {"PYTHONPATH": ""}):
        assert without_hook(hook_environment("/hook", env, line=4)) == env


def test_an_environment_without_the_hook_is_unchanged() -> None:
    assert without_hook({"PYTHONPATH": "/mine"}) == {"PYTHONPATH": "/mine"}
