"""Wait for changes of files with inotify, so that a fault meets a command at a precise point."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import subprocess
import time
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path
from types import TracebackType

_EVENT = struct.Struct("iIII")
_DEADLINE_S = 120.0
_POLL_S = 0.05


class Change(IntFlag):
    """A change of a file in a directory, as inotify numbers it."""

    WRITTEN = 0x2
    MOVED = 0x40
    CREATED = 0x100
    DELETED = 0x200


class FileEvents:
    """The changes of files in directories from now on.

    Args:
        directories: Directories, without those below them; those that do not exist are skipped.
        change: Changes that count.
        suffix: End of the names of the files that count.
    """

    def __init__(self, directories: Sequence[Path], change: Change, suffix: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._suffix = suffix.encode()
        self._file = libc.inotify_init1(os.O_CLOEXEC)
        for directory in directories:
            libc.inotify_add_watch(self._file, os.fsencode(directory), int(change))

    def __enter__(self) -> FileEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def wait(self, count: int, process: subprocess.Popen[bytes]) -> bool:
        """Wait for this number of changes; return False if the process ends before."""
        deadline = time.monotonic() + _DEADLINE_S
        while count > 0 and time.monotonic() < deadline:
            if select.select([self._file], [], [], _POLL_S)[0]:
                count -= self._read()
            elif process.poll() is not None:
                return False
        return count <= 0

    def _read(self) -> int:
        """Return the number of changes that have been reported since the last call."""
        data, count = os.read(self._file, 65536), 0
        while data:
            *_, length = _EVENT.unpack_from(data)
            name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
            count += name.endswith(self._suffix)
            data = data[_EVENT.size + length :]
        return count
