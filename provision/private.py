"""Directories that only their owner can enter."""

from __future__ import annotations

from pathlib import Path


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each accessible only to its owner, with any umask.

    `Path.mkdir(mode, parents=True)` applies the mode to the last directory only.

    Raises:
        OSError: a directory cannot be created.
    """
    missing = []
    for each in (path, *path.parents):
        if each.exists():
            break
        missing.append(each)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
