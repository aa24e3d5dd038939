"""Compute SHA-256 hashes of files, cached while a file does not change."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from pathlib import Path
from typing import Any

from provision.directories import make_directory
from train.agent.files.contents import hash_file
from train.agent.files.disk import write_atomic

_KEPT = 50_000
SETTLED_NS = 1_000_000_000  # a file changed more recently may change again without a new time stamp


class HashCache:
    """Hashes by path, valid while size, times, inode, and device of the file are the same.

    Args:
        path: JSON file that stores the hashes; a missing or broken file is an empty cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used: dict[str, list[Any]] = {}
        self._old: dict[str, list[Any]] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            values = json.loads(path.read_text(encoding="utf-8"))
            self._old = {key: item for key, item in values.items() if isinstance(item, list)}

    def hash(self, path: str) -> tuple[str, int]:
        """Return the hash and the size in bytes of a file, which is only read if it has changed.

        Raises:
            OSError: the file cannot be read.
        """
        began_ns = time.time_ns()
        status = Path(path).stat()
        size, mtime_ns, ctime_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns  # no program can set ctime
        stamp = [size, mtime_ns, ctime_ns, status.st_ino, status.st_dev]
        cached = self._old.get(path, [])
        if cached[:-1] == stamp:
            self._used[path] = cached
            return str(cached[-1]), size
        digest, size_read = hash_file(path)
        # A change after `began_ns` changes the stamp, whatever the resolution of the file system.
        if size_read == size and began_ns - max(mtime_ns, ctime_ns) > SETTLED_NS:
            self._used[path] = [*stamp, digest]
        return digest, size_read

    def save(self) -> None:
        """Write the hashes that were used, and older ones up to the limit."""
        kept = dict(itertools.islice({**self._used, **self._old, **self._used}.items(), _KEPT))
        if kept != self._old:
            # If this fails, the next command computes the hashes again.
            with contextlib.suppress(OSError):
                make_directory(self._path.parent)
                write_atomic(str(self._path), json.dumps(kept, separators=(",", ":")).encode())
