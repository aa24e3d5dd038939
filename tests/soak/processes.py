"""List the processes of a local fleet, by kind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_MARK = re.compile(rb"(?:^|\0)FLEET_INSTANCE=([0-9a-f]+)")
_AGENT = b"\0-I\0-S\0/"  # and the path of the agent


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


@dataclass(frozen=True)
class Process:
    """A process of a fleet, with its resident memory in KiB and the number of its open files."""

    pid: int
    parent: int
    part: ProcessKind
    host: str
    rss_kib: int
    files: int

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has ended."""
        try:
            os.kill(self.pid, number)
        except OSError:
            return False
        return True


def instances(state: Path) -> dict[str, str]:
    """Return host names by instance ID, of all local fleets of a state directory."""
    names = {}
    for path in (state / "local").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_bytes())
            names[record["id"]] = record["name"]
    return names


def memory_and_files(pid: int) -> tuple[int, int]:
    """Return resident memory in KiB, and the number of open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, len([*Path(f"/proc/{pid}/fd").iterdir()])


def processes(state: Path) -> list[Process]:
    """Return all processes of the local fleets of a state directory, without zombies."""
    names = instances(state)
    entries: dict[int, tuple[int, bytes, str]] = {}
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdecimal() and int(entry) != os.getpid():
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if status[0] == "Z":
                    continue
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
                host = _host_of(entry, words, names)
                if host:
                    entries[int(entry)] = int(status[1]), words, host
    parts = _parts(entries)
    listed = []
    for pid, part in parts.items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            listed.append(Process(pid, entries[pid][0], part, entries[pid][2], *memory_and_files(pid)))
    return listed


def _host_of(entry: str, words: bytes, names: Mapping[str, str]) -> str:
    if words.startswith(b"sshd"):
        text = words.decode("utf-8", "replace")
        error = str(Path(f"/proc/{entry}/fd/2").readlink())
        return next(
            (names[instance] for instance in names if f"={instance} " in text or f"sshd-{instance}.log" in error), ""
        )
    mark = _MARK.search(Path(f"/proc/{entry}/environ").read_bytes())
    return names.get(mark[1].decode(), "") if mark else ""


def _parts(entries: Mapping[int, tuple[int, bytes, str]]) -> dict[int, ProcessKind]:
    parts: dict[int, ProcessKind] = {}
    for pid, (_, words, _) in entries.items():
        if words.startswith(b"sshd"):
            parts[pid] = ProcessKind.LISTENER if b"[listener]" in words else ProcessKind.SESSION
        elif _AGENT not in words:
            parts[pid] = ProcessKind.TASK

    def part_of(pid: int) -> ProcessKind:
        if pid not in parts:
            parent = entries[pid][0]
            above = part_of(parent) if parent in entries else None
            parts[pid] = {
                ProcessKind.SESSION: ProcessKind.CONVERSATION,
                ProcessKind.WATCHDOG: ProcessKind.SUPERVISOR,
                ProcessKind.SUPERVISOR: ProcessKind.REPLICATOR,
            }.get(above or ProcessKind.TASK, ProcessKind.WATCHDOG)
        return parts[pid]

    for pid in entries:
        part_of(pid)
    return parts
