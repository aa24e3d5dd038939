"""The stand-in for gcloud as a program that is found on PATH."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = Path(__file__).with_name("images") / "gcloud.py"


@dataclass(frozen=True)
class Gcloud:
    """The program in a directory.

    Attributes:
        directory: The directory, which is created.
    """

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        program = self.directory / "gcloud"
        program.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.read_text()}")
        program.chmod(0o755)

    def log_in(self, account: str = "me@example.com") -> None:
        """Let an account be logged in."""
        (self.directory / "account").write_text(account)

    def path(self) -> str:
        """Return the value of PATH with which the program is found."""
        return f"{self.directory}{os.pathsep}{os.environ['PATH']}"
