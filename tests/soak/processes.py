"""List the processes of a local fleet, by kind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil


class ProcessKind(Enum):
    """Kind of a process, by its purpose in a fleet."""

    LISTENER = "listener"
    SESSION = "session"
    CONVERSATION = "conversation"
    WATCHDOG = "watchdog"
    SUPERVISOR = "supervisor"
    REPLICATOR = "replicator"
    TASK = "task"


AGENTS = (ProcessKind.CONVERSATION, ProcessKind.WATCHDOG, ProcessKind.SUPERVISOR, ProcessKind.REPLICATOR)
_CHILDREN = {
    ProcessKind.SESSION: ProcessKind.CONVERSATION,
    ProcessKind.WATCHDOG: ProcessKind.SUPERVISOR,
    ProcessKind.SUPERVISOR: ProcessKind.REPLICATOR,
}
_Running = dict[int, tuple[psutil.Process, list[str], str]]


@dataclass(frozen=True)
class Process:
    """A process of a fleet, with its resident memory in KiB and the number of its open files."""

    pid: int
    part: ProcessKind
    host: str
    rss_kib: int = 0
    files: int = 0

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has ended."""
        try:
            os.kill(self.pid, number)
        except OSError:
            return False
        return True


def memory_and_files(process: psutil.Process) -> tuple[int, int]:
    """Return resident memory in KiB, and the number of open files."""
    return process.memory_info().rss // 1024, process.num_fds()


def processes(state: Path) -> list[Process]:
    """Return all processes of the local fleets of a state directory, without zombies."""
    names = {}
    for path in (state / "local").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_bytes())
            names[record["id"]] = record["name"]
    running: _Running = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            host = _host_of(process, " ".join(words), names)
            if host and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                running[process.pid] = process, words, host
    result = []
    for process, _, host in running.values():
        with contextlib.suppress(psutil.Error):
            kind = _kind(process.pid, running)
            result.append(Process(process.pid, kind, host, *memory_and_files(process)))
    return result


def _host_of(process: psutil.Process, command: str, names: Mapping[str, str]) -> str:
    if not command.startswith("sshd"):
        return names.get(process.environ().get("FLEET_INSTANCE", ""), "")
    error = str(Path(f"/proc/{process.pid}/fd/2").readlink())
    return next((names[id_] for id_ in names if f"={id_} " in command or f"sshd-{id_}.log" in error), "")


def _kind(pid: int, running: _Running) -> ProcessKind:
    process, words, _ = running[pid]
    if words[0].startswith("sshd"):
        return ProcessKind.LISTENER if "[listener]" in " ".join(words) else ProcessKind.SESSION
    if words[1:3] != ["-I", "-S"]:  # the options of agents
        return ProcessKind.TASK
    parent = process.ppid()
    return _CHILDREN.get(_kind(parent, running), ProcessKind.WATCHDOG) if parent in running else ProcessKind.WATCHDOG
