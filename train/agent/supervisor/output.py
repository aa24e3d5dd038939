"""Output of a task on its way to the log's followers and to the parser of its progress."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, List, Tuple

from train.agent.host.control import encode_output
from train.agent.protocol.records import Log, Progress
from train.agent.supervisor.progress import ProgressParser

SLICE_S = 0.001  # of parsing, before the loop serves something else
CPU_FRACTION = 0.1  # of the time may be spent on parsing
MOST_WAITING = 1 << 20  # bytes
_LAST_S = 1.0
_LAST_BYTES = 1 << 11
_PIECE = 1 << 11

INTERVAL_S = 0.01  # between two notifications of followers
MOST_BYTES = 1 << 14  # of output that is sent with its notification; followers read more from the log


class ProgressQueue:
    """Pass output to a parser in slices.

    A task can write faster than its output can be parsed. Then the oldest waiting output is skipped: the newest
    shows the current progress.

    Args:
        parser: Reads the output.
    """

    def __init__(self, parser: ProgressParser) -> None:
        self._parser = parser
        self._waiting: Deque[Tuple[bytes, float]] = deque()
        self._done = 0  # bytes of the first of them that are parsed
        self._size = 0

    @property
    def size(self) -> int:
        """Return the number of bytes in the queue."""
        return self._size

    def put(self, data: bytes, at: float) -> None:
        """Add output that was read at `at`, in seconds since the epoch."""
        self._waiting.append((data, at))
        self._size += len(data)
        self._keep_newest(MOST_WAITING)

    def parse(self, seconds: float = SLICE_S) -> List[Progress]:
        """Parse the queue for about `seconds`; return the ends of epochs."""
        epoch_ends: List[Progress] = []
        until = time.monotonic() + seconds
        while self._waiting:
            data, at = self._waiting[0]
            piece = data[self._done : self._done + _PIECE]
            self._forget(len(piece))
            epoch_ends += self._parser.feed(piece, at)
            if time.monotonic() >= until:
                break
        return epoch_ends

    def finish(self) -> List[Progress]:
        """Parse the rest of the queue, or its end if that takes too long; return the ends of epochs."""
        epoch_ends = self.parse(_LAST_S)
        self._keep_newest(_LAST_BYTES)
        return epoch_ends + self.parse(_LAST_S)

    def _keep_newest(self, most_bytes: int) -> None:
        if self._size <= most_bytes:
            return
        while self._size > most_bytes:
            self._forget(min(self._size - most_bytes, len(self._waiting[0][0]) - self._done))
        self._parser.skip()

    def _forget(self, count: int) -> None:
        self._size -= count
        self._done += count
        if self._done >= len(self._waiting[0][0]):
            self._waiting.popleft()
            self._done = 0


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
