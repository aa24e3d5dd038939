"""Compute SHA-256 hashes of files, cached while a file does not change."""

from __future__ import annotations

import contextlib
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
    """Hashes by path, valid while size, times and inode of the file are the same.

    Args:
        path: JSON file that stores the hashes; a missing or broken file is an empty cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._old = _load(path)
        self._used: dict[str, list[Any]] = {}

    def sha256(self, path: str) -> tuple[str, int]:
        """Return the hash and the size in bytes of a file, which is only read if it has changed.

        Raises:
            OSError: the file cannot be read.
        """
        now = Path(path).stat()
        stamp = [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
        cached = self._old.get(path)
        if cached is not None and cached[:4] == stamp:
            self._used[path] = cached
            return str(cached[4]), now.st_size
        digest, size = hash_file(path)
        if size == now.st_size and time.time_ns() - max(now.st_mtime_ns, now.st_ctime_ns) > SETTLED_NS:
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
    return {key: item for key, item in values.items() if isinstance(item, list) and len(item) == 5}
