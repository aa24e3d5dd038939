"""Build an interpreter whose ensurepip has pip with its bytecode."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.compiled_pip import VARIABLE, VERSION, compiled_pip
from tests.emulator import python as bare_python


def shared_interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter that the workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fleet-interpreter"
    python = directory / "bin" / f"python{VERSION}"
    with (directory.parent / "fleet-interpreter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            bare_python.build(directory)
            bundled = directory / "lib" / python.name / "ensurepip" / "_bundled"
            bundled.mkdir(parents=True)
            shutil.copy(compiled_pip(Path(os.environ[VARIABLE])), bundled)
            (directory / "complete").touch()
    return str(python)
