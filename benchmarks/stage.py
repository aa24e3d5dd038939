"""A local fleet with a script, in separate directories."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

S = TypeVar("S", bound="Stage")


class Stage:
    """A local fleet, a script, and a directory for the script's output.

    Args:
        root: An empty directory.
        script: Text of the script.
        workers: Number of workers.
    """

    def __init__(self, root: Path, script: str, workers: int = 2) -> None:
        self.fleet = str(Path(sys.executable).parent / "fleet")
        self.workers = workers
        self.marks = root / "marks"
        self.marks.mkdir()
        self.work = root / "work"
        self.work.mkdir()
        self.script = self.work / "task.py"
        self.script.write_text(script)
        self.state = root / "state"
        self.env = {**os.environ, "FLEET_STATE_DIR": str(self.state)}

    def __enter__(self: S) -> S:
        self.run("up", "--workers", str(self.workers))
        return self

    def __exit__(self, *_: object) -> None:
        self.run("down", "--yes")

    def run(self, *arguments: str) -> None:
        """Run a command of fleet to its end.

        Raises:
            CalledProcessError: It failed.
        """
        subprocess.run([self.fleet, *arguments], env=self.env, check=True, capture_output=True, timeout=300)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of fleet; its output is discarded."""
        nothing = subprocess.DEVNULL
        return subprocess.Popen([self.fleet, *arguments], env=self.env, stdout=nothing, stderr=nothing)

    @contextlib.contextmanager
    def workers_by_hand(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run the script on all workers as by hand: each with a TF_CONFIG, and in a session, as in a terminal.

        Linux schedules sessions as groups (sched_autogroup): two workers in one session run 5 % faster on two cores.
        The script reads its index from RANK. Processes that still run at the end are killed.
        """
        ports = []
        for _ in range(self.workers):
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports.append(free.getsockname()[1])
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        command, nothing = [sys.executable, str(self.script), str(self.marks)], subprocess.DEVNULL
        processes = []
        try:
            for rank in range(self.workers):
                config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
                env = {**os.environ, "TF_CONFIG": config, "RANK": str(rank)}
                processes.append(
                    subprocess.Popen(command, env=env, stdout=nothing, stderr=nothing, start_new_session=True)
                )
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def clear(self) -> None:
        """Remove what the script wrote."""
        for mark in self.marks.iterdir():
            mark.unlink()
