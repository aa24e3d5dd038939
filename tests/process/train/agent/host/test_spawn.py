"""Test processes that are forked with what only they may hold."""

from __future__ import annotations

import os
import select

from train.agent.host.spawn import fork_released


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
