"""A separate local fleet, the commands that a user types for it, and what each of them reported."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fork_server import start_command
from tests.program import Program, find_paths
from tests.soak.processes import Process, ProcessKind, processes

HOSTS = ("worker-0", "worker-1", "worker-2")
UP = ("up", "--workers", str(len(HOSTS)))
"""Also repairs the fleet, as a user does if a host does not answer."""
DEADLINE_S = 240.0
"""Longest time that a command may take, in seconds; clients give up on hosts earlier."""

_JOB = re.compile(r"\b\d{8}-\d{6}-[a-z0-9]{4}\b")
_POLL_S = 0.05

# Prints lines until a limit. Arguments: number of lines, seconds between lines, and the time at which the task ends.
TASK = r"""
import os, sys, time
count, pause, until = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
rank, attempt = os.environ["FLEET_RANK"].encode(), os.environ["FLEET_ATTEMPT"].encode()
for number in range(count):
    if time.time() > until:
        break
    os.write(1, b"%s %s %d\n" % (rank, attempt, number))
    time.sleep(pause)
"""


@dataclass
class Client:
    """A command that was started, with its output in files."""

    process: subprocess.Popen[bytes]
    arguments: Sequence[str]
    out: Path
    err: Path
    started_at: float = field(default_factory=time.monotonic)
    hung: bool = False

    @property
    def code(self) -> int | None:
        return self.process.returncode

    @property
    def words(self) -> str:
        return self.err.read_text(errors="replace")

    @property
    def job(self) -> str:
        """Return the job that the command named; empty: none."""
        match = _JOB.search(self.words)
        return match[0] if match else ""

    def lines(self, worker: str) -> list[str]:
        """Return the lines that were shown of a worker's log."""
        prefix = f"{worker} | "
        text = self.out.read_text(errors="replace")
        return [line[len(prefix) :] for line in text.split("\n") if line.startswith(prefix)]

    def reports_gap(self, worker: str) -> bool:
        """Return whether the command reported that the log of a worker is incomplete."""
        return bool(re.search(rf"\b{worker}\b.*\bincomplete\b|\bincomplete\b.*\b{worker}\b", self.words))

    def end(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait for the command to end; after the deadline, end it and write all stacks to its output."""
        try:
            self.process.wait(max(1.0, self.started_at + deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.hung = True
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()


class Lane:
    """A fleet of three hosts below a directory."""

    def __init__(self, root: Path) -> None:
        self.work, self.output = root / "work", root / "output"
        for directory in (self.work, self.output):
            directory.mkdir(parents=True)
        (self.work / "task.py").write_text(TASK)
        self.program = Program(state=root / "state", directory=self.work)
        self.state = self.program.state
        self._count = 0
        self.run(*UP)

    def start(self, *arguments: str) -> Client:
        self._count += 1
        out, err = (self.output / f"{self._count:05d}-{arguments[0]}.{kind}" for kind in ("out", "err"))
        with out.open("wb") as first, err.open("wb") as second:
            process = start_command(
                arguments,
                directory=self.work,
                environment=self.program.environment(),
                stdout=first,
                stderr=second,
                new_session=True,
            )
        return Client(process, arguments, out, err)

    def run(self, *arguments: str) -> Client:
        client = self.start(*arguments)
        client.end()
        return client

    def processes(self) -> list[Process]:
        return processes(self.state)

    def job(self) -> str:
        """Return the job that was committed on a host; empty: none."""
        paths = find_paths(self.state / "local", "*/fleet/jobs/*/*/job.json")
        return next((path.parts[-3] for path in paths), "")

    def stored(self, job: str, worker: str) -> list[str]:
        """Return the lines of a worker's log on its host, of all attempts in order."""
        paths = find_paths(self.state / "local", f"*-{worker}/fleet/jobs/{job}/{worker}/attempt-*/log")
        logs = sorted(paths, key=lambda path: int(path.parent.name.rpartition("-")[2]))
        return [line for log in logs for line in log.read_text(errors="replace").split("\n") if line]

    def has_begun(self) -> bool:
        """Return whether a task of a job has printed a line."""
        with contextlib.suppress(OSError):
            return any(log.stat().st_size for log in (self.state / "local").glob("*/fleet/jobs/*/*/attempt-1/log"))
        return False

    @staticmethod
    def wait(condition: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until a condition holds; return False after the deadline."""
        end = time.monotonic() + deadline_s
        while True:
            begun = time.monotonic()
            if condition():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(max(_POLL_S, 5 * (time.monotonic() - begun)))

    def left(self) -> list[Process]:
        """Return the processes other than the listening sshd of each host."""
        return [process for process in self.processes() if process.part is not ProcessKind.LISTENER]

    def is_up(self) -> bool:
        """Return whether every host has its listening sshd."""
        return {process.host for process in self.processes() if process.part is ProcessKind.LISTENER} == {*HOSTS}


@contextlib.contextmanager
def new_lane(root: Path) -> Iterator[Lane]:
    """Create a fleet; delete it after the block, and check that it leaves no process."""
    lane = Lane(root)
    try:
        yield lane
    finally:
        if (lane.state / "fleets" / "default").exists():
            lane.run("down", "--yes")
        left = lane.processes()
        for process in left:
            process.send(signal.SIGKILL)
    assert not left, f"{left} was left by `down`"
