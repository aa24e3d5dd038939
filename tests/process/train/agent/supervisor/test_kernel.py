"""Test whether the kernel killed a task because of missing memory: its counters and logs, synthetic and real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.agent.host.spawn import open_gate, spawn
from train.agent.supervisor.oom import OomWatch

MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,"
    "task=python,pid=31744,uid=0\n"
    "Memory cgroup out of memory: Killed process 31744 (python) total-vm:75220kB, anon-rss:65280kB, file-rss:5916kB, "
    "shmem-rss:1024kB, UID:0 pgtables:184kB oom_score_adj:0"
)
HOST = (
    "Out of memory: Killed process 812 (python3) total-vm:9000000kB, anon-rss:8388608kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:1000 pgtables:184kB oom_score_adj:0"
)


class Files:
    """/proc, /sys and /dev as a kernel might have them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroup = root / "sys/fs/cgroup/user.slice/session-3.scope"
        self.cgroup.mkdir(parents=True)
        (root / "proc/7").mkdir(parents=True)
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/7/cgroup").write_text("0::/user.slice/session-3.scope\n")
        (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
        mounts = "22 27 0:21 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        (root / "proc/self/mountinfo").write_text(mounts)
        self.count(0, 0)

    def count(self, host: int, cgroup: int) -> None:
        (self.root / "proc/vmstat").write_text(f"nr_free_pages 1\noom_kill {host}\n")
        if cgroup >= 0:
            (self.cgroup / "memory.events").write_text(f"low 0\noom 9\noom_kill {cgroup}\noom_group_kill 0\n")

    def keep_log(self) -> None:
        (self.root / "dev").mkdir()
        (self.root / "dev/kmsg").touch()
        (self.root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")

    def log(self, text: str) -> None:
        """Append entries to the log. One read of the device returns one entry, so each fills the reader's buffer."""
        with (self.root / "dev/kmsg").open("a") as log:
            log.writelines(f"6,1,1,-;{line}\n".ljust(1 << 13) for line in text.splitlines())

    def watch(self) -> OomWatch:
        return OomWatch(7, str(self.root))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_no_reason_is_given_when_the_kernel_killed_no_process(files: Files) -> None:
    watch = files.watch()
    assert watch.verdict(7) == ""
    (files.root / "proc/vmstat").unlink()
    assert watch.verdict(7) == ""


def test_the_count_of_its_own_cgroup_makes_it_certain(files: Files) -> None:
    files.count(4, 2)
    watch = files.watch()
    files.count(5, 3)
    assert watch.verdict(7) == "killed by the kernel's OOM killer according to the counter of its cgroup"
    (files.cgroup / "memory.max").write_text("12884901888\n")
    assert watch.verdict(7).endswith("according to the counter of its cgroup (limit 12.0 GiB)")
    (files.cgroup / "memory.max").write_text("max\n")
    assert watch.verdict(7).endswith("of its cgroup")


def test_the_death_of_another_process_is_not_taken_for_ours(files: Files) -> None:
    watch = files.watch()
    files.count(1, 0)
    assert watch.verdict(7) == ""


@pytest.mark.parametrize(
    ("pid", "log", "clause"),
    [
        (31744, MEMCG, "killed by the kernel's OOM killer (it used 64.8 MiB of 1.0 GiB, the limit of its cgroup)"),
        (812, HOST, "killed by the kernel's OOM killer (it used 8.0 GiB of 16.0 GiB, the memory of its host)"),
        (7, HOST, ""),
    ],
)
def test_the_log_names_the_killed_process(files: Files, pid: int, log: str, clause: str) -> None:
    (files.cgroup / "memory.max").write_text(str(1 << 30))
    files.keep_log()
    watch = files.watch()
    files.count(1, 1)
    files.log(log)
    assert watch.verdict(pid) == clause
    watch.close()


def test_a_count_of_the_whole_host_alone_makes_it_likely(files: Files) -> None:
    (files.cgroup / "memory.events").unlink()
    watch = files.watch()
    files.count(2, -1)
    assert watch.verdict(7) == (
        "most likely killed by the kernel's OOM killer, which killed 2 of this host's processes since the task began"
    )


def test_a_container_sees_its_own_part_of_the_cgroups(files: Files) -> None:
    (files.root / "proc/7/cgroup").write_text("5:cpu:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n")
    directory = files.root / "sys/fs/cgroup/memory"
    directory.mkdir()
    mount = "30 24 0:26 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    (files.root / "proc/self/mountinfo").write_text(mount)
    (directory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (directory / "memory.limit_in_bytes").write_text("1073741824\n")
    watch = files.watch()
    files.count(1, -1)
    (directory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert watch.verdict(7).endswith("according to the counter of its cgroup (limit 1.0 GiB)")


class TestRealKernel:
    """A real process in a memory cgroup that is too small for it; needs root, and writable cgroups."""

    @pytest.fixture
    def cgroup(self) -> Iterator[tuple[Path, str]]:
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

    def test_the_result_names_the_kernel_as_the_killer(self, cgroup: tuple[Path, str]) -> None:
        directory, limit = cgroup
        (directory / limit).write_text(str(64 << 20))
        swap = directory / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        script = "held = []\nwhile True: held.append(bytearray(b'x') * (1 << 20))"
        spawned = spawn([sys.executable, "-c", script], dict(os.environ), "/", umask=0o022, gated=True)
        try:
            (directory / "cgroup.procs").write_text(str(spawned.pid))
            watch, blind = OomWatch(spawned.pid), OomWatch(spawned.pid)
            blind.close()
        finally:
            open_gate(spawned)
            _, status = os.waitpid(spawned.pid, 0)
            os.close(spawned.output)
        assert os.WTERMSIG(status) == signal.SIGKILL
        clause = watch.verdict(spawned.pid)
        watch.close()
        assert clause.startswith("killed by the kernel's OOM killer")
        assert "64.0 MiB" in clause
        assert blind.verdict(spawned.pid) == (
            "killed by the kernel's OOM killer according to the counter of its cgroup (limit 64.0 MiB)"
        )
