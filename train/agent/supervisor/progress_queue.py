"""Queue output for the parser of its progress, so that parsing never delays logs, heartbeats, and messages."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, List, Tuple

from train.agent.protocol.records import Progress
from train.agent.supervisor.progress import ProgressParser

SLICE_S = 0.001  # of parsing, before the loop serves something else
CPU_FRACTION = 0.1  # of the time may be spent on parsing
MOST_WAITING = 1 << 20  # bytes
_LAST_S = 1.0
_LAST_BYTES = 1 << 11
_PIECE = 1 << 11


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
