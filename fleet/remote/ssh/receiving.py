"""Receive the data of an SSH session: how much may wait, and a buffer that does not copy it.

This is the only module that uses internals of paramiko, and only of the versions it was tested with.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any

import paramiko
from paramiko.buffered_pipe import BufferedPipe, PipeTimeout

WINDOW = 16 * 1024 * 1024
"""Largest receive window in bytes: 16 MiB fill 1 Gb/s at a round-trip time of 100 ms."""

_WINDOWS = 16 * 1024 * 1024  # of all hosts that a command reads at the same time
_LEAST_WINDOW = 64 * 1024
_TESTED = ("5.1.",)  # versions of paramiko


def share_window(hosts: int) -> int:
    """Return the receive window of each of several hosts, so that what waits for a slow reader stays bounded."""
    return max(_LEAST_WINDOW, min(WINDOW, _WINDOWS // max(1, hosts)))


def tune(session: paramiko.Channel) -> None:
    """Let a session that has received nothing yet keep what arrives without copying it, and acknowledge it seldom.

    Paramiko copies received data three times, and a part of a buffer is removed by moving the rest. It acknowledges
    each tenth of the window, which is each packet of a small one.
    """
    if paramiko.__version__.startswith(_TESTED) and type(session.in_buffer) is BufferedPipe:
        session.in_buffer = ChunkBuffer()
        session.in_window_threshold = session.in_window_size // 4


class ChunkBuffer(BufferedPipe):  # type: ignore[type-arg]
    """A BufferedPipe that keeps the chunks as they came."""

    _lock: Any
    _cv: Any
    _event: Any
    _closed: bool

    def __init__(self) -> None:
        super().__init__()
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Add received data."""
        with self._lock:
            if self._event is not None:
                self._event.set()
            self._chunks.append(data)
            self._size += len(data)
            self._cv.notify_all()

    def read_ready(self) -> bool:
        """Return True if a read returns data at once."""
        return self._size > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Return up to `nbytes` bytes; nothing at the end of the data.

        Raises:
            PipeTimeout: nothing arrived in time.
        """
        with self._lock:
            if not (self._size or self._closed):
                self._wait(timeout)
            data = self._take(nbytes)
            if not self._size and self._event is not None and not self._closed:
                self._event.clear()
            return data

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else monotonic() + timeout
        while not (self._size or self._closed):
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                raise PipeTimeout
            self._cv.wait(left)

    def _take(self, limit: int) -> bytes:
        taken: list[bytes] = []
        while limit > 0 and self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > limit:
                self._chunks.appendleft(chunk[limit:])
                chunk = chunk[:limit]
            taken.append(chunk)
            limit -= len(chunk)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._size -= len(data)
        return data

    def empty(self) -> bytes:
        """Return all data, and clear the buffer."""
        with self._lock:
            data = self._take(self._size)
            if self._event is not None and not self._closed:
                self._event.clear()
            return data

    def set_event(self, event: Any) -> None:
        """Set an event whenever there is data, or the end of it."""
        with self._lock:
            self._event = event
            if self._closed or self._size:
                event.set()
            else:
                event.clear()

    def __len__(self) -> int:
        return self._size
