"""Output that was written to the log, and of which followers were not notified yet; pure."""

from __future__ import annotations

from typing import List

from train.agent.host.control import encode_output
from train.agent.protocol.records import Log

INTERVAL_S = 0.01
"""Time between two notifications, in seconds."""

MOST_BYTES = 1 << 14
"""Largest output that is sent with its notification, in bytes; followers read more from the log."""


class Unannounced:
    """Collect output until its notification."""

    def __init__(self) -> None:
        self._announced_at = 0.0
        self._ends_line = True
        self._pieces: List[bytes] = []
        self._marks: List[int] = []
        self._offset = self._size = self._marked = 0
        self._at_us = self._last_us = 0

    def add(self, data: bytes, offset: int, at_us: int) -> None:
        """Add output, which was written to the log at `offset` and has the time `at_us` there, in microseconds."""
        if not self._size:
            self._offset, self._at_us, self._last_us = offset, at_us, at_us
        elif at_us != self._last_us:
            self._marks += [self._size - self._marked, at_us - self._last_us]
            self._marked, self._last_us = self._size, at_us
        self._size += len(data)
        self._ends_line = data.endswith(b"\n")
        if self._size <= MOST_BYTES:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def due(self, now: float) -> float:
        """Return when to notify followers: at once, or together with what comes soon after the output before.

        An unfinished line waits a moment for its end, because some programs write the newline separately.
        """
        return (self._announced_at if self._ends_line else now) + INTERVAL_S

    def take(self, slot: str, task: str, attempt: int, records_size: int, now: float) -> bytes:
        """Return the packet that notifies followers of the output; empty if they have to read it from the log.

        Args:
            slot: Of the log.
            task: Of the log.
            attempt: Of the log.
            records_size: Bytes of the records that were written before the end of the output.
            now: Seconds of a monotonic clock.
        """
        data, size = b"".join(self._pieces), self._size
        record = Log(slot, task, attempt, self._offset, size, self._at_us / 1e6, self._marks)
        self._announced_at = now
        self._pieces, self._marks, self._size, self._marked = [], [], 0, 0
        return encode_output(record, data, records_size) if 0 < size <= MOST_BYTES else b""
