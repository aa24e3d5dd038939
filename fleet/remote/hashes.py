"""Compute SHA-256 hashes of files, cached while a file does not change."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from provision.directories import make_directory
from train.agent.files.contents import hash_file
from train.agent.files.disk import write_atomic

_KEPT = 50_000
_FIELDS = 6  # of a cached hash: those of a stamp, and the hash
SETTLED_NS = 1_000_000_000  # a file changed more recently may change again without a new time stamp


class Stamp(NamedTuple):
    """Metadata of a file, which differ after each change of its content that does not directly follow another one."""

    size: int  # bytes
    mtime_ns: int
    ctime_ns: int  # no program can set it
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)

    def is_settled(self, now_ns: int) -> bool:
        """Return whether a change after `now_ns` changes the stamp, whatever the resolution of the file system."""
        return now_ns - max(self.mtime_ns, self.ctime_ns) > SETTLED_NS


class HashCache:
    """Hashes by path, valid while size, times, inode, and device of the file are the same.

    Args:
        path: JSON file that stores the hashes; a missing or broken file is an empty cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._old = _load(path)
        self._used: dict[str, list[Any]] = {}

    def hash(self, path: str) -> tuple[str, int]:
        """Return the hash and the size in bytes of a file, which is only read if it has changed.

        Raises:
            OSError: the file cannot be read.
        """
        began_ns = time.time_ns()
        stamp = Stamp.of(Path(path).stat())
        cached = self._old.get(path)
        if cached is not None and cached[:-1] == [*stamp]:
            self._used[path] = cached
            return str(cached[-1]), stamp.size
        digest, size = hash_file(path)
        if size == stamp.size and stamp.is_settled(began_ns):
            self._used[path] = [*stamp, digest]
        return digest, size

    def save(self) -> None:
        """Write the hashes that were used, and older ones up to the limit."""
        kept = dict(self._used)
        for path, cached in self._old.items():
            if len(kept) >= _KEPT:
                break
            kept.setdefault(path, cached)
        if kept == self._old:
            return
        # If this fails, the next command computes the hashes again.
        with contextlib.suppress(OSError):
            make_directory(self._path.parent)
            write_atomic(str(self._path), json.dumps(kept, separators=(",", ":")).encode())


def _load(path: Path) -> dict[str, list[Any]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: item for key, item in values.items() if isinstance(item, list) and len(item) == _FIELDS}
