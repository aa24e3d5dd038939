from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fleet.errors import NotReadyError
from fleet.remote.ssh.program import find_ssh, remote_command, ssh_command

CONFIG = Path("/state/fleets/demo/ssh_config")


@pytest.mark.parametrize(
    ("given", "input_terminal", "terminal", "option"),
    [([], True, False, "-t"), ([], False, False, "-T"), (["top"], True, True, "-t"), (["cat"], True, False, "-T")],
)
def test_a_terminal_is_allocated_if_the_user_has_one(
    given: list[str], input_terminal: bool, terminal: bool, option: str
) -> None:
    line = remote_command(given)
    words = ssh_command("ssh", CONFIG, "demo-1", line, input_terminal=input_terminal, terminal=terminal)
    assert words[3] == option
    assert words[-1] == line or not given


def test_the_words_of_a_command_reach_the_program_unchanged() -> None:
    given = ["echo", "a b", "$HOME; rm -r *", "it's", "-n", "", "line\nbreak"]
    assert shlex.split(remote_command(given)) == ["exec", *given]


def test_without_ssh_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "apt-get"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError) as raised:
        find_ssh()
    assert raised.value.next_steps[0].text().endswith("apt-get install openssh-client")  # type: ignore[union-attr]
