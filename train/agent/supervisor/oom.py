"""Find out whether the kernel killed a task because of missing memory, from its counters.

The counter of the task's cgroup includes processes killed in it, whether the cgroup or the host ran out of memory.
/proc/vmstat has the counter of the host, for a kernel that does not count by cgroup.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events), cgroup-v1/memory.html
(memory.oom_control); mm/vmstat.c.
"""

from __future__ import annotations

import os
from typing import Dict, NamedTuple

from train.agent.files.disk import read_text, readable_size

_MOUNT = "sys/fs/cgroup"
# Names of the controller, which is also that of its mount point below; of the counter; and of the limit.
_VERSION_1 = ("memory", "memory.oom_control", "memory.limit_in_bytes")
_VERSION_2 = ("", "memory.events", "memory.max")
_NO_LIMIT = 1 << 60  # bytes; cgroup v1 has a number for none


class _Counts(NamedTuple):
    """Number of processes killed by the OOM killer since the host booted or the cgroup was created; -1 if unknown."""

    host: int
    cgroup: int


class OomWatch:
    """Watch for OOM kills in the cgroup of a task, from now on.

    Args:
        pid: The task's process.
        root: In which /proc and /sys are found.
    """

    def __init__(self, pid: int, root: str = "/") -> None:
        self._root = root
        self._counter = self._limit = ""
        self._find_cgroup(pid)
        self._before = self._count()

    def verdict(self) -> str:
        """Return a clause on why the task got SIGKILL, with its certainty; empty if the kernel did not kill it.

        The clause is certain if the task's own cgroup counted it; a count of the whole host makes it likely.
        """
        now, before = self._count(), self._before
        if before.cgroup >= 0:
            if now.cgroup <= before.cgroup:
                return ""
            limit = read_text(self._limit).strip()
            has_limit = limit.isdigit() and int(limit) < _NO_LIMIT
            measured = f" (limit {readable_size(int(limit))})" if has_limit else ""
            return f"killed by the kernel's OOM killer according to the counter of its cgroup{measured}"
        if now.host <= before.host or before.host < 0:
            return ""
        return (
            "most likely killed by the kernel's OOM killer, which killed "
            f"{now.host - before.host} of this host's processes since the task began"
        )

    def _find_cgroup(self, pid: int) -> None:
        paths: Dict[str, str] = {}
        for line in read_text(os.path.join(self._root, f"proc/{pid}/cgroup")).splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
        for name, counter, limit in (_VERSION_1, _VERSION_2):
            mount = os.path.join(self._root, _MOUNT, name)
            for directory in (os.path.join(mount, paths.get(name, "")), mount):  # a container sees only its own part
                if not self._counter and os.path.exists(os.path.join(directory, counter)):
                    self._counter, self._limit = os.path.join(directory, counter), os.path.join(directory, limit)

    def _count(self) -> _Counts:
        vmstat = read_text(os.path.join(self._root, "proc/vmstat"))
        return _Counts(_kills_in(vmstat), _kills_in(read_text(self._counter)) if self._counter else -1)


def _kills_in(text: str) -> int:
    counts = (line.split() for line in text.splitlines() if line.startswith("oom_kill "))
    return next((int(words[1]) for words in counts), -1)
