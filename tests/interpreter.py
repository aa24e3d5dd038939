"""Build interpreters for tests."""

from __future__ import annotations

import fcntl
import os
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.emulator import python as bare_python


def separate_interpreter(directory: Path) -> str:
    """Return an interpreter with this program's packages whose path does not contain the project's directory.

    A task is forked from a warm process only while the directories of its path do not change, but other tests and
    checks write their caches into the project's directory.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    return str(directory / "bin" / "python")


def shared_interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with the ensurepip of guests; the workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fleet-interpreter"
    with (directory.parent / "fleet-interpreter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            bare_python.build(directory)
            (directory / "complete").touch()
    return str(directory / "bin" / f"python{bare_python.THIS.version}")
