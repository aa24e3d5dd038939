"""Commands that install OpenSSH on this computer."""

from __future__ import annotations

import os
import shutil
from typing import Literal

from provision.model import Command

_COMMANDS = {
    "apt-get": ("install", {"server": "openssh-server", "client": "openssh-client"}),
    "dnf": ("install", {"server": "openssh-server", "client": "openssh-clients"}),
    "zypper": ("install", {"server": "openssh-server", "client": "openssh-clients"}),
    "pacman": ("-S", {"server": "openssh", "client": "openssh"}),
    "apk": ("add", {"server": "openssh-server", "client": "openssh-client"}),
}


def install_openssh(part: Literal["server", "client"]) -> list[Command]:
    """Return the command that installs a part of OpenSSH; none if no package manager is known here."""
    for tool, (verb, packages) in _COMMANDS.items():
        if shutil.which(tool):
            return [(*(() if os.geteuid() == 0 else ("sudo",)), tool, verb, packages[part])]
    return []
