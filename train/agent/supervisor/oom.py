"""Find out whether the kernel killed a task because of missing memory, from its counters and its log.

Both are read from the start of the task on. The counter of the task's cgroup includes processes killed in it,
whether the cgroup or the host ran out of memory; /proc/vmstat has the counter of the host. The log contains process
IDs of the host, which are valid only outside of containers, and is often readable only by root.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events), cgroup-v1/memory.html
(memory.oom_control), https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg, mm/oom_kill.c.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from train.agent.files.disk import parse_mounts, read_text, readable_size

_COUNTED = {1: "memory.oom_control", 2: "memory.events"}  # by the version of cgroups
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_KIND = {1: "cgroup", 2: "cgroup2"}
_COMPUTERS_PROCESSES = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/uapi/linux/nsfs.h
_LINES = 1 << 16  # at most; the log of a kernel that never stops talking has an end for us
_LONGEST_LINE = 1 << 13
_KILLED = re.compile(r"Killed process (\d+) \(")
_CHOSEN = re.compile(r"oom-kill:constraint=(\w+),.*,pid=(\d+),uid=")
_RESIDENT = re.compile(r"(?:anon|shmem)-rss:(\d+)kB")  # files in memory could have been dropped
_IN_CGROUP = "CONSTRAINT_MEMCG"
_NO_LIMIT = 1 << 60  # bytes; cgroup v1 has a number for none


class Death(NamedTuple):
    """The kernel's log entry of a process that the OOM killer ended."""

    used: int  # bytes; 0: not known
    in_cgroup: bool  # a limit was reached; else the host had nothing left


class _Counts(NamedTuple):
    """Number of processes killed by the OOM killer since the host booted or the cgroup was created; -1 if unknown."""

    host: int
    cgroup: int


def death_of(pid: int, log: str) -> Optional[Death]:
    """Return the log entry on the death of `pid`, or None if the OOM killer did not end it."""
    used, is_killed, in_cgroup = 0, False, False
    for line in log.splitlines():
        chosen = _CHOSEN.search(line)
        if chosen and int(chosen.group(2)) == pid:
            is_killed, in_cgroup = True, chosen.group(1) == _IN_CGROUP
        killed = _KILLED.search(line)
        if killed and int(killed.group(1)) == pid:
            is_killed, in_cgroup = True, in_cgroup or "Memory cgroup" in line
            used = sum(int(count) for count in _RESIDENT.findall(line)) * 1024
    return Death(used, in_cgroup) if is_killed else None


class OomWatch:
    """Watch for OOM kills of one task.

    Args:
        pid: The task's process.
        root: In which /proc, /sys and /dev are found.
    """

    def __init__(self, pid: int, root: str = "/") -> None:
        self._root = root
        self._cgroup = self._find_cgroup(pid)
        self._before = self._count()
        self._log = -1
        try:
            if os.readlink(self._path("proc/self/ns/pid")) == _COMPUTERS_PROCESSES:
                self._log = os.open(self._path("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._log, 0, os.SEEK_END)
        except OSError:  # not for us, or not there
            self.close()

    def close(self) -> None:
        """Close the log."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def verdict(self, pid: int) -> str:
        """Return a clause on why `pid` got SIGKILL, with its certainty; empty if the kernel did not kill it.

        The clause is certain where the log names the process, or its own cgroup counted it; a count of the whole host
        alone makes it likely.
        """
        now, before = self._count(), self._before
        if now.host >= 0 and before.host >= 0 and now.host <= before.host:
            return ""
        log, whole = self._read_log()
        death = death_of(pid, log)
        if death is not None:
            return f"killed by the kernel's OOM killer{self._measured(death)}"
        if whole:  # it lists every process that the kernel kills
            return ""
        if now.cgroup > before.cgroup >= 0:
            return f"killed by the kernel's OOM killer according to the counter of its cgroup{self._measured(None)}"
        if now.host > before.host >= 0 and now.cgroup < 0:
            return (
                "most likely killed by the kernel's OOM killer, which killed "
                f"{now.host - before.host} of this host's processes since the task began"
            )
        return ""

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _measured(self, death: Optional[Death]) -> str:
        limit = self._limit()
        total = _field(read_text(self._path("proc/meminfo")), "MemTotal:") * 1024
        if death is None:
            return f" (limit {readable_size(limit)})" if limit else ""
        whose = "the limit of its cgroup" if death.in_cgroup else "the memory of its host"
        most = limit if death.in_cgroup else total
        return f" (it used {readable_size(death.used)} of {readable_size(most)}, {whose})" if most else f" ({whose})"

    # --- counts -----------------------------------------------------------------------------------------------------

    def _find_cgroup(self, pid: int) -> Tuple[str, int]:
        """Return the directory of the memory cgroup of `pid`, and its version; empty if there is none."""
        path_by_version: Dict[int, str] = {}
        for line in read_text(self._path(f"proc/{pid}/cgroup")).splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                path_by_version[1] = path
            elif number == "0":
                path_by_version[2] = path
        for version in sorted(path_by_version):
            for mount in parse_mounts(read_text(self._path("proc/self/mountinfo"))):
                if mount.kind != _KIND[version] or (version == 1 and "memory" not in mount.options.split(",")):
                    continue
                relative = path_by_version[version]
                if mount.root != "/" and relative.startswith(mount.root):
                    relative = relative[len(mount.root) :]
                for path in (mount.point.rstrip("/") + relative, mount.point):
                    directory = self._path(path).rstrip("/")
                    if os.path.exists(os.path.join(directory, _COUNTED[version])):
                        return directory, version
        return "", 0

    def _count(self) -> _Counts:
        host = _field(read_text(self._path("proc/vmstat")), "oom_kill", -1)
        directory, version = self._cgroup
        cgroup = _field(read_text(os.path.join(directory, _COUNTED[version])), "oom_kill", -1) if directory else -1
        return _Counts(host, cgroup)

    def _limit(self) -> int:
        """Return the memory limit of the task's cgroup in bytes; 0 if there is none."""
        directory, version = self._cgroup
        text = read_text(os.path.join(directory, _LIMIT[version])).strip() if directory else ""
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else 0

    # --- log --------------------------------------------------------------------------------------------------------

    def _read_log(self) -> Tuple[str, bool]:
        """Return the log entries on killed processes since the start, and True if none is missing."""
        entries: List[str] = []
        whole = self._log >= 0
        for _ in range(_LINES if whole else 0):
            try:
                data = os.read(self._log, _LONGEST_LINE)
            except BrokenPipeError:  # some entries were overwritten; the next read continues after them
                whole = False
                continue
            except OSError:
                break
            if not data:
                break
            message = data.partition(b";")[2].split(b"\n", 1)[0]
            if b"Killed process" in message or b"oom-kill" in message:
                entries.append(message.decode("utf-8", "replace"))
        return "\n".join(entries), whole


def _field(text: str, name: str, default: int = 0) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return default
