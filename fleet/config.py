"""Values that the environment sets: the state directory, the default fleet, and the caller."""

from __future__ import annotations

import os
import re
from pathlib import Path

DEFAULT_FLEET = "default"
STATE_VARIABLE = "FLEET_STATE_DIR"
NAME_VARIABLE = "FLEET_NAME"

_LABEL_LENGTH = 63  # of Compute Engine


def state_root() -> Path:
    """Return the directory of all state: ``FLEET_STATE_DIR``, else the user's state directory of the system."""
    given = os.environ.get(STATE_VARIABLE, "")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("fleet")


def caller() -> str:
    """Return user and computer in characters that cloud labels accept: ``ann-laptop``."""
    import getpass
    import socket

    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # no such user in the system's list
        login = str(os.getuid())
    plain = re.sub(r"[^a-z0-9_-]+", "-", f"{login}-{socket.gethostname().partition('.')[0]}".lower())
    return plain.strip("-_")[:_LABEL_LENGTH]
