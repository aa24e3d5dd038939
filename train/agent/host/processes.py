"""Processes of this host, from /proc; format: proc(5)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from train.agent.files.disk import list_names, read_json, read_text, remove_file, remove_scratch
from train.agent.files.paths import TaskPaths
from train.agent.protocol.records import Exit

MARK = "FLEET_TASK_DIRECTORY"  # in the environment of every process of a task
_END_DEADLINE_S = 10.0
_POLL_S = 0.02
_LONGEST_STAT = 1 << 12  # bytes; 52 numbers and the name of a program
DEAD = ("Z", "X", "x")
"""States of processes that have ended."""
_PF_EXITING = 0x4  # include/linux/sched.h


class Stat(NamedTuple):
    """Fields of /proc/PID/stat."""

    pid: int
    state: str
    parent: int
    group: int
    ticks: int  # of CPU time, user and system
    started: int  # ticks after the start of the computer
    resident: int  # pages
    flags: int = 0  # of the kernel, PF_…

    @property
    def ending(self) -> bool:
        """Return True if the process is exiting, by itself or killed; only after this it closes its files."""
        return bool(self.flags & _PF_EXITING) or self.state in DEAD


class ProcessId(NamedTuple):
    """A process ID that is unique across reuse and reboots."""

    pid: int
    started: int
    boot: str


def boot_id() -> str:
    """Return the ID of the current boot."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def parse_stat(line: str) -> Stat:
    """Parse a line of /proc/PID/stat; the command in it may contain spaces and parentheses.

    Raises:
        ValueError: the line is malformed.
    """
    head, separator, tail = line.rpartition(") ")
    fields = tail.split()
    if not separator or len(fields) < 22:
        raise ValueError(f"no line of /proc/PID/stat: {line[:80]!r}")
    return Stat(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
        resident=int(fields[21]),
        flags=int(fields[6]),
    )


def read_stat(pid: int, thread: int = 0) -> Optional[Stat]:
    """Return what /proc reports about a process, or about one of its threads; None if it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_stat(os.read(fd, _LONGEST_STAT).decode("utf-8", "replace"))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def handles_signal(pid: int, number: int) -> bool:
    """Return True if a process handles a signal; False if it is gone."""
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _children_of(pid: int) -> List[int]:
    """Return the children of all threads of a process; one that ends meanwhile may hide others from the list.

    Source: proc(5), `children`.
    """
    children: List[int] = []
    for thread in list_names(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
            children += map(int, file.read().split())
    return children


def list_processes() -> Dict[int, Stat]:
    """Return all processes of this host that are alive."""
    return _read_stats(int(name) for name in os.listdir("/proc") if name.isdigit())


def _read_stats(pids: Iterable[int]) -> Dict[int, Stat]:
    stats = map(read_stat, pids)
    return {stat.pid: stat for stat in stats if stat is not None and stat.state not in DEAD}


def descendants(ancestor: int, table: Dict[int, Stat]) -> Set[int]:
    """Return the processes of `table` that descend from `ancestor`, without itself."""
    children: Dict[int, List[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    result: Set[int] = set()
    queue = [ancestor]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in result:
                result.add(child)
                queue.append(child)
    return result


def read_descendants(ancestor: int) -> Dict[int, Stat]:
    """Return the living descendants of a process, without itself.

    Only these are read, unless the kernel does not list the children of a process: a host has hundreds of others.
    """
    if not os.path.exists("/proc/thread-self/children"):
        table = list_processes()
        return {pid: table[pid] for pid in descendants(ancestor, table)}
    pids: Set[int] = set()
    queue = [ancestor]
    while queue:
        children = [child for child in _children_of(queue.pop()) if child not in pids]
        pids.update(children)
        queue += children
    return _read_stats(pids)


def identify(pid: int) -> ProcessId:
    """Return the unique ID of the living process `pid`."""
    stat = read_stat(pid)
    return ProcessId(pid, stat.started if stat else 0, boot_id())


def is_alive(process: ProcessId) -> bool:
    """Return True if this process is running; a zombie is not."""
    stat = read_stat(process.pid)
    if stat is None or stat.state in DEAD:
        return False
    return stat.started == process.started and boot_id() == process.boot


def receive_signals(numbers: Iterable[int]) -> int:
    """Return a descriptor from which the numbers of these signals can be read, one byte each, when they arrive."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reads


def signal_all(pids: Iterable[int], number: int) -> bool:
    """Send a signal to each process; return True if at least one received it."""
    sent = False
    for pid in pids:
        try:
            os.kill(pid, number)
            sent = True
        except OSError:
            continue
    return sent


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if none of it is left."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def is_marked(pid: int, directory: str) -> bool:
    """Return True if a process belongs to the task in `directory`, by its environment."""
    mark = f"{MARK}={directory}".encode("utf-8", "surrogateescape")
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def _read_process_id(value: Any) -> Optional[ProcessId]:
    return ProcessId(*value) if isinstance(value, list) and len(value) == 3 else None


def _find_leftovers(paths: TaskPaths, leader: Optional[ProcessId]) -> List[int]:
    table = list_processes()
    group = leader.pid if leader and leader.boot == boot_id() else 0
    if leader and group in table and table[group].started != leader.started:
        group = 0
    return [
        stat.pid
        for stat in table.values()
        if stat.pid != os.getpid() and ((group and stat.group == group) or is_marked(stat.pid, paths.directory))
    ]


def end_leftovers(paths: TaskPaths) -> bool:
    """Kill what is left of a task whose supervisor is gone, and remove its temporary files.

    Returns:
        True if there was any process.

    Raises:
        TimeoutError: processes are still there after ten seconds.
    """
    has_killed = _kill_leftovers(paths)
    remove_scratch(paths.scratch)
    return has_killed


def _kill_leftovers(paths: TaskPaths) -> bool:
    recorded = read_json(paths.processes)
    if recorded is None:
        return False
    leader = _read_process_id(recorded.get("task"))
    has_killed = False
    end = time.monotonic() + _END_DEADLINE_S
    while True:
        left = _find_leftovers(paths, leader)
        if not left:
            remove_file(paths.processes)
            return has_killed
        if time.monotonic() > end:
            raise TimeoutError(f"processes {left} are still there {_END_DEADLINE_S:.0f} s after SIGKILL")
        has_killed = signal_all(left, signal.SIGKILL) or has_killed
        time.sleep(_POLL_S)  # the kernel reports the end of a process to its parent only


def supervisor_of(paths: TaskPaths) -> Optional[ProcessId]:
    """Return the recorded supervisor of a task, or None if it ended in order."""
    recorded = read_json(paths.processes)
    return _read_process_id(recorded.get("supervisor")) if recorded else None


def await_exit(process: ProcessId, deadline_s: float) -> bool:
    """Wait for the end of a process that need not be a child; return False if the deadline passes."""
    end = time.monotonic() + deadline_s
    while is_alive(process):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def decode_exit(status: int) -> Exit:
    """Return how a process ended, from the status of waitpid(2)."""
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))
