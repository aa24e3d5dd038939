"""The processes of a local fleet, by their part in it."""

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
_AGENT = b"\0-I\0-S\0-c\0"


class ProcessKind(Enum):
    """What a process does in a fleet."""

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
        """Send a signal; False if the process has ended."""
        try:
            os.kill(self.pid, number)
        except OSError:
            return False
        return True


def instances(state: Path) -> dict[str, str]:
    """Host names by instance, of all local fleets of a state directory."""
    found = {}
    for path in (state / "local").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_bytes())
            found[record["id"]] = record["name"]
    return found


def memory_and_files(pid: int) -> tuple[int, int]:
    """Resident memory in KiB, and the number of open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, len([*Path(f"/proc/{pid}/fd").iterdir()])


def processes(state: Path) -> list[Process]:
    """All processes of the local fleets of a state directory, zombies left out."""
    names = instances(state)
    found: dict[int, tuple[int, bytes, str]] = {}
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdecimal() and int(entry) != os.getpid():
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if status[0] == "Z":
                    continue
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
                host = _host_of(entry, words, names)
                if host:
                    found[int(entry)] = int(status[1]), words, host
    parts = _parts(found)
    listed = []
    for pid, part in parts.items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            listed.append(Process(pid, found[pid][0], part, found[pid][2], *memory_and_files(pid)))
    return listed


def _host_of(entry: str, words: bytes, names: Mapping[str, str]) -> str:
    if words.startswith(b"sshd"):
        text = words.decode("utf-8", "replace")
        error = str(Path(f"/proc/{entry}/fd/2").readlink())
        return next((names[one] for one in names if f"={one} " in text or f"sshd-{one}.log" in error), "")
    mark = _MARK.search(Path(f"/proc/{entry}/environ").read_bytes())
    return names.get(mark[1].decode(), "") if mark else ""


def _parts(found: Mapping[int, tuple[int, bytes, str]]) -> dict[int, ProcessKind]:
    parts: dict[int, ProcessKind] = {}
    for pid, (_, words, _) in found.items():
        if words.startswith(b"sshd"):
            parts[pid] = ProcessKind.LISTENER if b"[listener]" in words else ProcessKind.SESSION
        elif _AGENT not in words:
            parts[pid] = ProcessKind.TASK

    def part_of(pid: int) -> ProcessKind:
        if pid not in parts:
            parent = found[pid][0]
            above = part_of(parent) if parent in found else None
            parts[pid] = {
                ProcessKind.SESSION: ProcessKind.CONVERSATION,
                ProcessKind.WATCHDOG: ProcessKind.SUPERVISOR,
                ProcessKind.SUPERVISOR: ProcessKind.REPLICATOR,
            }.get(above or ProcessKind.TASK, ProcessKind.WATCHDOG)
        return parts[pid]

    for pid in found:
        part_of(pid)
    return parts
