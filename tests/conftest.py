from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program

# Compiling all modules in each process that the tests start, and all tests in each worker, doubles the CPU time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure() -> None:
    """Let the processes that tests start have default signal handling.

    `nohup`, and a shell that starts a command in the background, make it ignore some signals. Processes inherit that
    through exec. They do not inherit a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """The program in an empty directory, with a state directory of its own; everything is taken down at the end."""
    directory = tmp_path / "work"
    directory.mkdir()
    program = Program(state=tmp_path / "state", directory=directory)
    yield program
    program.close()
