"""The agent starts fast because it imports little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import train

EXPENSIVE = {"collections", "contextlib", "dataclasses", "inspect", "pathlib", "random", "socket", "statistics"}
EXPENSIVE |= {"subprocess", "traceback", "typing"}
IMPORT = "import sys; sys.path.append(sys.argv[1]); import train.agent.{}; print(*sys.modules)"


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("requests.serve", {"collections", "contextlib"}),
        ("requests.commit", {"collections", "contextlib", "socket"}),
    ],
)
def test_expensive_modules_are_not_imported(module: str, used: set[str]) -> None:
    root = str(Path(train.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", IMPORT.format(module), root]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "train.agent.protocol.records" in modules
    assert not EXPENSIVE & set(modules) - used
