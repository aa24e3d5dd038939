"""What the environment decides: where the state lies, which fleet is meant, who calls."""

from __future__ import annotations

import os
import re
from pathlib import Path

DEFAULT_FLEET = "default"
STATE_VARIABLE = "FLEET_STATE_DIR"
NAME_VARIABLE = "FLEET_NAME"

_LABEL_LENGTH = 63  # of Compute Engine

FLEET_COMMANDS = (
    "up", "train", "check", "logs", "status", "pull", "jobs", "inventory", "stop", "extend", "down",
)  # fmt: skip
"""The commands that take ``--fleet``."""

_COMMAND = re.compile(rf"\bfleet (?:{'|'.join(FLEET_COMMANDS)})\b(?! --fleet)")


def for_fleet(text: str, name: str) -> str:
    """Add ``--fleet NAME`` to each command that a sentence mentions, unless NAME is the default fleet."""
    return text if name == DEFAULT_FLEET else _COMMAND.sub(rf"\g<0> --fleet {name}", text)


def with_fleet(commands: str, name: str) -> str:
    """Add ``--fleet NAME`` to command lines that do not name a fleet, unless NAME is the default fleet."""
    return "\n".join(_line_with_fleet(line, name) for line in commands.split("\n"))


def _line_with_fleet(line: str, name: str) -> str:
    options = line.partition(" -- ")[0].split()
    if name == DEFAULT_FLEET or any(word.partition("=")[0] == "--fleet" for word in options):
        return line
    return re.sub(rf"^fleet (?:{'|'.join(FLEET_COMMANDS)})\b", rf"\g<0> --fleet {name}", line)


def state_root() -> Path:
    """Directory of all state on this computer: ``FLEET_STATE_DIR``, else the user's state directory of the system."""
    given = os.environ.get(STATE_VARIABLE, "")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("fleet")


def caller() -> str:
    """Who calls, and where, in the characters that labels of clouds take: ``ann-laptop``."""
    import getpass
    import socket

    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # no such user in the system's list
        login = str(os.getuid())
    plain = re.sub(r"[^a-z0-9_-]+", "-", f"{login}-{socket.gethostname().partition('.')[0]}".lower())
    return plain.strip("-_")[:_LABEL_LENGTH]
