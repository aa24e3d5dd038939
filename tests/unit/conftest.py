"""Unit tests are pure: they start no process and open no socket. Tests that do are in tests/process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_FORBIDDEN = frozenset(
    ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system", "socket.connect", "socket.bind")
)
_UNIT = Path(__file__).parent
_running: list[str] = []


def _audit(event: str, _arguments: object) -> None:
    if event in _FORBIDDEN and _running and threading.current_thread() is threading.main_thread():
        raise AssertionError(f"{event} in a unit test: move {_running[-1]} to tests/process")


sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _UNIT in item.path.parents:  # pytest calls this hook for tests of other directories, too
        _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.clear()
