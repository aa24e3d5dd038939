"""Programs for comparison, in separate virtual environments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parent / ".peers"


def ansible() -> Path:
    """Return the program directory of ansible-core, which is installed if it is missing."""
    directory = _DIRECTORY / "ansible"
    if not (directory / "bin" / "ansible").exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(directory / "bin" / "pip"), "install", "-q", "ansible-core"], check=True)
    return directory / "bin"
