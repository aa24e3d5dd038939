"""SHA-256 of files, remembered while a file stays as it is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from fleet.state import write_atomic
from provision.private import make_directory

_BLOCK = 1024 * 1024
_KEPT = 50_000
_SETTLED_NS = 1_000_000_000  # a file changed more recently may change again without a new time stamp


class HashCache:
    """Hashes by path, valid as long as size, times and inode of the file are the same.

    Args:
        path: JSON file that keeps them; a missing or broken one is an empty cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._old = _load(path)
        self._used: dict[str, list[Any]] = {}

    def sha256(self, path: str) -> tuple[str, int]:
        """Hash and size in bytes of a file, read only if it has changed.

        Raises:
            OSError: the file cannot be read.
        """
        now = Path(path).stat()
        stamp = [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
        known = self._old.get(path)
        if known is not None and known[:4] == stamp:
            self._used[path] = known
            return str(known[4]), now.st_size
        digest, size = hash_file(path)
        if size == now.st_size and time.time_ns() - max(now.st_mtime_ns, now.st_ctime_ns) > _SETTLED_NS:
            self._used[path] = [*stamp, digest]
        return digest, size

    def save(self) -> None:
        """Write what was used, and what was known before as far as there is room."""
        kept = dict(self._used)
        for path, known in self._old.items():
            if len(kept) >= _KEPT:
                break
            kept.setdefault(path, known)
        if kept == self._old:
            return
        # The next command hashes again where this fails.
        with contextlib.suppress(OSError):
            make_directory(self._path.parent)
            write_atomic(self._path, json.dumps(kept, separators=(",", ":")).encode())


def hash_file(path: str) -> tuple[str, int]:
    """SHA-256 in hexadecimal of a file's content, and its size in bytes.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    block = memoryview(bytearray(_BLOCK))
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
            size += count
    return digest.hexdigest(), size


def _load(path: Path) -> dict[str, list[Any]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: item for key, item in values.items() if isinstance(item, list) and len(item) == 5}
