"""Next steps of errors: commands as objects, which this module renders with the name of the fleet."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_FLEET = "default"

FLEET_COMMANDS = frozenset({
    "up", "train", "check", "logs", "status", "pull", "jobs", "inventory", "stop", "extend", "down",
    "ssh", "exec", "push", "ssh-config", "rerun", "compare", "tensorboard", "report",
})  # fmt: skip
"""The commands that take ``--fleet``."""

Change = Mapping[str, str | bool | None]
"""Options to change on a command line: option → value, True for a flag, None to remove it; empty: no change.

``SCRIPT`` stands for the first operand.
"""


@dataclass(frozen=True)
class Step:
    """A command of this program: ``Step("logs", "-f")`` is ``fleet logs -f``.

    Args:
        words: Command and arguments, unquoted.
        fleet: Fleet of the command; empty: that of the command that failed.
    """

    words: tuple[str, ...]
    fleet: str

    def __init__(self, *words: str, fleet: str = "") -> None:
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "fleet", fleet)

    def text(self, fleet: str = "") -> str:
        """Return the command line, quoted for a shell.

        Args:
            fleet: Fleet of the command, unless the step or its words name one.
        """
        command, *arguments = self.words
        name = self.fleet or fleet or DEFAULT_FLEET
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        is_named = any(word.partition("=")[0] == "--fleet" for word in options)
        if command in FLEET_COMMANDS and name != DEFAULT_FLEET and not is_named:
            arguments = ["--fleet", name, *arguments]
        return shlex.join(["fleet", command, *arguments])


@dataclass(frozen=True)
class Shell:
    """A command of another program, already quoted for a shell."""

    line: str

    def text(self, _fleet: str = "") -> str:
        """Return the command line."""
        return self.line


@dataclass(frozen=True)
class Again:
    """The typed command with some options changed.

    Attributes:
        change: Options to add, replace, or remove.
        command: The command that takes them, ``up``; empty: the one that was typed.
        program: Replaces the arguments after ``--``; None: they stay.
    """

    change: Change
    command: str = ""
    program: tuple[str, ...] | None = None


NextStep = Step | Shell | Again


def step_of(command: Sequence[str]) -> Step | Shell:
    """Return the step for a command of any program.

    Args:
        command: Its words, unquoted; or a command line as a string, which is shown unchanged.
    """
    if isinstance(command, str):
        return Shell(command)
    return Step(*command[1:]) if command[0] == "fleet" else Shell(shlex.join(command))
