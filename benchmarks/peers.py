"""Peers in virtual environments of their own, outside the project's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent / ".peers"


def ansible() -> Path:
    """Folder of the programs of ansible-core, installed where it is missing."""
    folder = _FOLDER / "ansible"
    if not (folder / "bin" / "ansible").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "ansible-core"], check=True)
    return folder / "bin"
