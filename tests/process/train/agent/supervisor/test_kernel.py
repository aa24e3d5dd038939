"""Test whether the kernel killed a task because of missing memory: its counters, synthetic and real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.agent.host.spawn import open_gate, spawn
from train.agent.supervisor.oom import OomWatch

BY_CGROUP = "killed by the kernel's OOM killer according to the counter of its cgroup"


class Files:
    """/proc and /sys as a kernel might have them; `cgroup` is the directory of the task's cgroup."""

    def __init__(self, root: Path, cgroup: str, *, version: int = 2) -> None:
        self.root = root
        self.cgroup = root / "sys/fs/cgroup" / cgroup
        self.cgroup.mkdir(parents=True)
        self._counter = "memory.events" if version == 2 else "memory.oom_control"
        (root / "proc/7").mkdir(parents=True)
        (root / "proc/7/cgroup").write_text("5:cpu:/job\n4:memory:/job\n0::/job\n" if version == 1 else "0::/job\n")
        self.count(4, 2)

    def count(self, host: int, cgroup: int) -> None:
        (self.root / "proc/vmstat").write_text(f"nr_free_pages 1\noom_kill {host}\n")
        if self.cgroup.exists():
            (self.cgroup / self._counter).write_text(f"low 0\noom 9\noom_kill {cgroup}\noom_group_kill 0\n")

    def watch(self) -> OomWatch:
        return OomWatch(7, str(self.root))


def test_the_count_of_its_own_cgroup_decides(tmp_path: Path) -> None:
    files = Files(tmp_path, "job")
    watch = files.watch()
    assert watch.verdict() == ""
    files.count(5, 2)  # another process of the host
    assert watch.verdict() == ""
    files.count(5, 3)
    assert watch.verdict() == BY_CGROUP
    (files.cgroup / "memory.max").write_text("12884901888\n")
    assert watch.verdict() == f"{BY_CGROUP} (limit 12.0 GiB)"
    (files.cgroup / "memory.max").write_text("max\n")
    assert watch.verdict() == BY_CGROUP


@pytest.mark.parametrize("cgroup", ["memory/job", "memory"])  # a container sees its own part of the cgroups
def test_the_first_version_of_cgroups(tmp_path: Path, cgroup: str) -> None:
    files = Files(tmp_path, cgroup, version=1)
    (files.cgroup / "memory.limit_in_bytes").write_text("1073741824\n")
    watch = files.watch()
    files.count(5, 3)
    assert watch.verdict() == f"{BY_CGROUP} (limit 1.0 GiB)"


def test_a_count_of_the_whole_host_alone_makes_it_likely(tmp_path: Path) -> None:
    files = Files(tmp_path, "job")
    (files.cgroup / "memory.events").unlink()
    files.cgroup.rmdir()
    watch = files.watch()
    assert watch.verdict() == ""
    files.count(6, 0)
    assert watch.verdict() == (
        "most likely killed by the kernel's OOM killer, which killed 2 of this host's processes since the task began"
    )
    (files.root / "proc/vmstat").unlink()
    assert watch.verdict() == ""


@pytest.fixture
def cgroup() -> Iterator[tuple[Path, str]]:
    """Yield a real memory cgroup, and the name of its limit; needs root, and writable cgroups."""
    name = f"fleet-test-{os.getpid()}"
    for directory, limit in (
        (Path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup") / name, "memory.max"),
    ):
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            if (directory / limit).exists():
                yield directory, limit
                return
        finally:
            directory.rmdir()
    pytest.skip("no memory cgroup can be made here")


def test_the_result_names_the_kernel_as_the_killer(cgroup: tuple[Path, str]) -> None:
    directory, limit = cgroup
    (directory / limit).write_text(str(64 << 20))
    swap = directory / "memory.swap.max"
    if swap.exists():
        swap.write_text("0")
    script = "held = []\nwhile True: held.append(bytearray(b'x') * (1 << 20))"
    spawned = spawn([sys.executable, "-c", script], dict(os.environ), "/", umask=0o022, gated=True)
    try:
        (directory / "cgroup.procs").write_text(str(spawned.pid))
        watch = OomWatch(spawned.pid)
    finally:
        open_gate(spawned)
        _, status = os.waitpid(spawned.pid, 0)
        os.close(spawned.output)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert watch.verdict() == f"{BY_CGROUP} (limit 64.0 MiB)"
