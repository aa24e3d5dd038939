"""The times of a task's output: a file with the time at which the agent read each piece of its log.

Entries have a fixed size and the order of the log. A byte of the log has the time of the last entry at or before it.
The file only adds information: it may be missing or end early. Its size is bounded by its resolution: 10 ms for the
first entries, one second in the end, which are 8 MiB and 1.4 MB per day.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import List, NamedTuple

ENTRY = struct.Struct(">QQ")
"""An entry: offset in the log in bytes, time in microseconds since the epoch."""

RESOLUTIONS_US = (10_000, 100_000, 1_000_000)
"""Least time between two entries, for each part of the file."""

PART = 1 << 18
"""Number of entries in each part but the last one."""

MOST_MARKS = 4096
_BLOCK = 256  # entries
_RECENT = 4  # entries


class TimesWriter:
    """Append to the times of a log. A full disk ends the file early, and is not an error.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        self._count = size // ENTRY.size
        os.ftruncate(self._fd, self._count * ENTRY.size)  # an entry may be cut off
        self._latest_us = -1

    def add(self, offset: int, at: float) -> None:
        """Record that the output from `offset` on was read at the time `at`, in seconds since the epoch."""
        at_us = int(at * 1e6)
        resolution_us = RESOLUTIONS_US[min(self._count // PART, len(RESOLUTIONS_US) - 1)]
        if self._fd < 0 or (self._latest_us >= 0 and 0 <= at_us - self._latest_us < resolution_us):
            return
        try:
            written = os.write(self._fd, ENTRY.pack(offset, at_us))
        except OSError:
            written = 0
        if written < ENTRY.size:
            self.close()
            return
        self._latest_us = at_us
        self._count += 1

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PieceTimes(NamedTuple):
    """The times of a piece of a log."""

    size: int  # bytes of the piece to which they apply
    at: float = 0.0  # of its first byte, seconds since the epoch; 0: unknown
    marks: List[int] = []  # as in the record Log


def piece_times(path: str, offset: int, size: int) -> PieceTimes:
    """Return the times of a piece of a log, or of its beginning if there are very many.

    Args:
        path: The times of the log; may be missing.
        offset: Of the piece, in bytes.
        size: Of the piece, in bytes.
    """
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return _read_times(file.fileno(), offset, size)
    return PieceTimes(size)


def _read_times(fd: int, offset: int, size: int) -> PieceTimes:
    index = _first_after(fd, 0, offset)
    at_us = _entry(fd, index - 1, 1) if index else 0
    marks: List[int] = []
    last, last_us = offset, at_us
    while True:
        block = os.pread(fd, _BLOCK * ENTRY.size, index * ENTRY.size)
        entries = list(ENTRY.iter_unpack(block[: len(block) // ENTRY.size * ENTRY.size]))
        for begin, begin_us in entries:
            if begin >= offset + size:
                return PieceTimes(size, at_us / 1e6, marks)
            if len(marks) == 2 * MOST_MARKS:
                return PieceTimes(begin - offset, at_us / 1e6, marks)
            if begin > last:
                marks += [begin - last, begin_us - last_us]
                last, last_us = begin, begin_us
        if len(entries) < _BLOCK:
            return PieceTimes(size, at_us / 1e6, marks)
        index += _BLOCK


def offset_since(path: str, at: float) -> int:
    """Return the offset of the first output with the time `at` or later; -1 if there is none, or it is unknown.

    Args:
        path: The times of the log; may be missing.
        at: Seconds since the epoch.
    """
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        index = _first_after(file.fileno(), 1, int(at * 1e6) - 1)
        return _entry(file.fileno(), index, 0) if index < os.fstat(file.fileno()).st_size // ENTRY.size else -1
    return -1


def _first_after(fd: int, field: int, value: int) -> int:
    """Return the index of the first entry whose field is greater than `value`, by binary search."""
    low, high = 0, os.fstat(fd).st_size // ENTRY.size
    if high > _RECENT and _entry(fd, high - _RECENT, field) <= value:  # of the newest output
        low = high - _RECENT
    while low < high:
        middle = (low + high) // 2
        if _entry(fd, middle, field) > value:
            high = middle
        else:
            low = middle + 1
    return low


def _entry(fd: int, index: int, field: int) -> int:
    data = os.pread(fd, ENTRY.size, index * ENTRY.size)
    return int(ENTRY.unpack(data)[field]) if len(data) == ENTRY.size else 0
