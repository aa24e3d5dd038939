"""Commands that install OpenSSH on this computer."""

from __future__ import annotations

import os
import shutil
from typing import Literal

_COMMANDS = {
    "apt-get": ("apt-get install", {"server": "openssh-server", "client": "openssh-client"}),
    "dnf": ("dnf install", {"server": "openssh-server", "client": "openssh-clients"}),
    "zypper": ("zypper install", {"server": "openssh-server", "client": "openssh-clients"}),
    "pacman": ("pacman -S", {"server": "openssh", "client": "openssh"}),
    "apk": ("apk add", {"server": "openssh-server", "client": "openssh-client"}),
}


def install_openssh(part: Literal["server", "client"]) -> str:
    """Return the command that installs a part of OpenSSH; empty if no package manager is known here."""
    for tool, (command, packages) in _COMMANDS.items():
        if shutil.which(tool):
            return f"{'' if os.geteuid() == 0 else 'sudo '}{command} {packages[part]}"
    return ""
