from __future__ import annotations

import threading
from typing import Any

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paramiko.buffered_pipe import BufferedPipe, PipeTimeout

from fleet.remote.ssh.internals import ChunkBuffer
from fleet.remote.ssh.receiving import WINDOW, share_window

STEPS = st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.integers(1, 20)), max_size=30)


@given(STEPS)
def test_chunks_are_read_as_from_the_buffer_of_paramiko(steps: list[bytes | int]) -> None:
    ours: Any = ChunkBuffer(WINDOW)
    theirs: Any = BufferedPipe()
    events = threading.Event(), threading.Event()
    for buffer, event in zip((ours, theirs), events, strict=True):
        buffer.set_event(event)
    for step in steps:
        if isinstance(step, bytes):
            ours.feed(step)
            theirs.feed(step)
        elif len(theirs):
            assert ours.read(step, 0.0) == theirs.read(step, 0.0)
        else:
            with pytest.raises(PipeTimeout):
                ours.read(step, 0.0)
        assert (len(ours), ours.read_ready()) == (len(theirs), theirs.read_ready())
        assert events[0].is_set() == events[1].is_set()
    for buffer in (ours, theirs):
        buffer.close()
    assert ours.empty() == theirs.empty()
    assert ours.read(1) == b""


def test_a_waiting_reader_gets_what_arrives() -> None:
    buffer = ChunkBuffer(WINDOW)
    threading.Timer(0.01, buffer.feed, [b"data"]).start()
    assert buffer.read(3, 10.0) == b"dat"
    threading.Timer(0.01, buffer.close).start()
    assert buffer.read(3) == b"a"
    assert buffer.read(3) == b""
    with pytest.raises(PipeTimeout):
        ChunkBuffer(WINDOW).read(1, 0.01)


def test_hosts_share_the_memory_of_receive_windows() -> None:
    assert share_window(1) == WINDOW == 8 * share_window(4)
    assert share_window(0) == WINDOW
    assert all(hosts * share_window(hosts) <= 64 << 20 for hosts in range(1, 1000))
    assert share_window(10_000) >= 1 << 16  # a packet has 32 KiB


def test_a_host_that_ignores_its_window_is_refused() -> None:
    buffer: Any = ChunkBuffer(100)
    for _ in range(1000):
        buffer.feed(b"")
    assert not buffer._chunks
    buffer.feed(b"a" * 200)
    with pytest.raises(paramiko.SSHException, match="more than its receive window"):
        buffer.feed(b"a")
    assert buffer.read(150) == b"a" * 150
    buffer.feed(b"a" * 150)
