"""CPU time of the hosts: of a control group if one can be created, otherwise of the processes with their marks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from provision.local.processes import MARK

_V1 = Path("/sys/fs/cgroup/cpuacct")
_V2 = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_TICKS = os.sysconf("SC_CLK_TCK")


class Accounting(Protocol):
    """Measures the CPU time of the processes of some hosts."""

    @property
    def method(self) -> str:
        """Return how it is measured."""

    def inside(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs `arguments` and starts processes that are measured."""

    def add(self, pid: int) -> None:
        """Measure a running process, and what it starts from now."""

    def seconds(self) -> float:
        """Return the CPU seconds so far."""

    def close(self) -> None:
        """Release what is used for it, after the processes have ended."""


class ControlGroup:
    """A control group; each process that is started in it stays in it.

    Args:
        directory: A new directory in a hierarchy of control groups.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    @property
    def method(self) -> str:
        """Return how it is measured."""
        return f"control group {self._directory.parent}"

    def inside(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs `arguments` in the group."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._directory / "cgroup.procs"), *arguments]

    def add(self, pid: int) -> None:
        """Move a process into the group."""
        (self._directory / "cgroup.procs").write_text(str(pid))

    def seconds(self) -> float:
        """Return the CPU seconds so far."""
        with contextlib.suppress(OSError):
            return int((self._directory / "cpuacct.usage").read_text()) / 1e9
        words = (self._directory / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6

    def close(self) -> None:
        """Delete the group; processes that are left are moved to its parent."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                for pid in (self._directory / "cgroup.procs").read_text().split():
                    (self._directory.parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                self._directory.rmdir()
            if not self._directory.exists():
                return
            time.sleep(0.02)


class Marks:
    """The processes with marks of instances. Processes that ended outside of an SSH session are not counted.

    Args:
        ids: IDs of the instances; may grow.
    """

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = ids

    @property
    def method(self) -> str:
        """Return how it is measured."""
        return "/proc of the processes with the mark of a host"

    def inside(self, arguments: Sequence[str]) -> list[str]:
        """Return `arguments`."""
        return list(arguments)

    def add(self, pid: int) -> None:
        """Do nothing: the process has a mark."""

    def seconds(self) -> float:
        """Return the CPU seconds of the processes and their ended children."""
        total = 0
        for directory in marked(self._ids):
            with contextlib.suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(") ")[2].split()
                total += sum(int(field) for field in fields[11:15])
        return total / _TICKS

    def close(self) -> None:
        """Do nothing."""


def marked(ids: Collection[str]) -> Iterator[Path]:
    """Yield the directories in /proc of the processes of some instances: listening sshds, and what they started."""
    marks = [f"{MARK}={each}".encode() for each in ids]
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):
                text = (directory / "environ").read_bytes() + (directory / "cmdline").read_bytes()
                if any(mark in text for mark in marks):
                    yield directory


def scheduled_s(pid: int) -> float:
    """Return the CPU seconds of a running process; 0 if it has ended."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(thread.read_text().split()[0])
    return total / 1e9


def agents_s(ids: Collection[str]) -> float:
    """Return the CPU seconds of the running processes of some instances that are not of a task."""
    total = 0.0
    for directory in marked(ids):
        with contextlib.suppress(OSError):
            if b"TF_CONFIG=" not in (directory / "environ").read_bytes():
                total += scheduled_s(int(directory.name))
    return total


def family_s(pid: int) -> float:
    """Return the CPU seconds of a running process and its children, with those of threads that have ended."""
    import psutil

    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(member.cpu_times()[:4])  # the last two: children that have ended
    return total


def open_accounting(ids: Collection[str], name: str) -> Accounting:
    """Return the best accounting that works here.

    Args:
        ids: IDs of the instances, filled when they are known.
        name: Part of the name of the control group.
    """
    for hierarchy, file in ((_V1, "cpuacct.usage"), *((path, "cpu.stat") for path in _V2)):
        directory = hierarchy / f"fleet-bench-{os.getpid()}-{name}"
        with contextlib.suppress(OSError):
            group = ControlGroup(directory)
            with contextlib.suppress(OSError, ValueError):
                if (directory / file).exists():
                    group.seconds()
                    return group
            group.close()
    return Marks(ids)
