"""Run tasks as children of this process, as a supervisor does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from train.agent.host.loop import Loop
from train.agent.host.spawn import install_hook
from train.agent.protocol.records import Exit
from train.agent.supervisor.task import TaskEvents, TaskProcess

DEADLINE_S = 90.0


class HeldProcess:
    """A task's process, and everything that it reported."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.output = bytearray()
        self.held = 0
        self.exits: list[Exit] = []
        self.closed = 0
        self.reports: list[bytes] = []
        events = TaskEvents(self.output.extend, self.exits.append, self._close, self._hold, self.reports.append)
        self.task = TaskProcess(self.loop, events)

    def _hold(self) -> None:
        self.held += 1

    def _close(self) -> None:
        self.closed += 1

    def until(self, true: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Serve the loop until a condition holds."""
        end = time.monotonic() + deadline_s
        while not true():
            assert time.monotonic() < end, bytes(self.output)
            self.loop.after("test", 0.01, lambda: None)
            self.loop.turn()
            if self.task.pid and self.task.exit is None and self.task.forked is None:
                pid, status = os.waitpid(self.task.pid, os.WNOHANG)
                if pid:
                    self.task.record_exit(status)

    def serve(self, seconds: float) -> None:
        """Serve the loop for this time."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def end(self) -> None:
        if self.task.pid:
            if not self.task.closed:
                self.task.kill()
            self.until(lambda: self.closed)
        self.loop.close()


@contextmanager
def process() -> Iterator[HeldProcess]:
    """Yield a process; end it at the end."""
    held = HeldProcess()
    try:
        yield held
    finally:
        held.end()


def hook_in(directory: Path) -> str:
    """Write the hook into a directory; return the hook's directory."""
    install_hook(str(directory / "hook"))
    return str(directory / "hook")


def script_in(directory: Path, text: str) -> str:
    """Write a script into a directory; return its path."""
    path = directory / "task.py"
    path.write_text(text)
    return str(path)
