"""Peers in virtual environments of their own, outside the project's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parent / ".peers"


def ansible() -> Path:
    """Directory of the programs of ansible-core, installed where it is missing."""
    directory = _DIRECTORY / "ansible"
    if not (directory / "bin" / "ansible").exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(directory / "bin" / "pip"), "install", "-q", "ansible-core"], check=True)
    return directory / "bin"
