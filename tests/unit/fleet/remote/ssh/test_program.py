from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fleet.errors import NotReadyError
from fleet.remote.ssh.program import find_ssh, remote_command, ssh_command

CONFIG = Path("/state/fleets/demo/ssh_config")


def words(command: str, *, input_terminal: bool, terminal: bool) -> list[str]:
    return ssh_command(
        "/usr/bin/ssh", CONFIG, "demo-worker-1", command, input_terminal=input_terminal, terminal=terminal
    )


def test_the_words_of_a_command_reach_the_program_unchanged() -> None:
    given = ["echo", "a b", "$HOME; rm -r *", "it's", "-n", "", "line\nbreak"]
    command = remote_command(given)
    assert shlex.split(command) == ["exec", *given]
    assert words(command, input_terminal=False, terminal=False)[-3:] == ["demo-worker-1", "--", command]


@pytest.mark.parametrize(
    ("command", "input_terminal", "terminal", "option"),
    [
        ("", True, True, "-t"),
        ("", True, False, "-t"),
        ("", False, False, "-T"),
        ("exec top", True, True, "-t"),
        ("exec cat", True, False, "-T"),
        ("exec cat", False, False, "-T"),
    ],
)
def test_a_terminal_is_allocated_if_the_user_has_one(
    command: str, input_terminal: bool, terminal: bool, option: str
) -> None:
    assert words(command, input_terminal=input_terminal, terminal=terminal)[3] == option


def test_without_ssh_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "apt-get"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError) as raised:
        find_ssh()
    assert raised.value.next_steps[0].text().endswith("apt-get install openssh-client")  # type: ignore[union-attr]
