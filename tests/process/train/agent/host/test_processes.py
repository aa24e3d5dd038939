"""Test the tree of the processes of a task, and processes that are forked with what only they may hold."""

from __future__ import annotations

import os
import select
import subprocess
import threading

from train.agent.host.processes import descendants, list_processes, read_descendants
from train.agent.host.spawn import fork_released


def test_the_descendants_of_a_process() -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "sleep 60 & echo; read line; kill $!"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        assert shell.pid in read_descendants(os.getpid())
        started = read_descendants(shell.pid).keys()
        assert len(started) == 1
        assert started == descendants(shell.pid, list_processes())
    assert shell.pid not in read_descendants(os.getpid())


def test_children_of_threads_are_descendants() -> None:
    children: list[subprocess.Popen[bytes]] = []
    has_started, may_end = threading.Event(), threading.Event()

    def start() -> None:
        children.append(subprocess.Popen(["sleep", "600"]))
        has_started.set()
        may_end.wait()

    thread = threading.Thread(target=start)
    thread.start()
    has_started.wait()
    with children[0] as child:
        assert child.pid in read_descendants(os.getpid())
        child.kill()
    may_end.set()
    thread.join()


def test_a_forked_process_begins_after_the_release() -> None:
    reads, writes = os.pipe()
    began_early: list[int] = []

    def release() -> None:
        began_early.extend(select.select([reads], [], [], 0.1)[0])

    pid = fork_released(release)
    if pid == 0:
        os.write(writes, b"began")
        os._exit(0)
    os.waitpid(pid, 0)
    assert not began_early
    assert os.read(reads, 10) == b"began"
    os.close(reads)
    os.close(writes)
