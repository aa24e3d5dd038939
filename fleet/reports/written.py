"""Recognize the files that `fleet report` writes."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".capsule.zip"
"""End of the name of a capsule."""

_MARK = b'<!doctype html>\n<html lang="en">\n'
_GENERATOR = b'<meta name="generator" content="fleet '
_HEAD = 1 << 10  # bytes of a page in which the generator is named


def is_page(path: Path) -> bool:
    """Return whether a file is a page of `fleet report`.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return head.startswith(_MARK) and _GENERATOR in head


def is_report(path: Path) -> bool:
    """Return whether a file is a page or a capsule: it belongs to an earlier job, not to the code of the next one."""
    try:
        return path.name.endswith(SUFFIX) or (path.suffix == ".html" and path.is_file() and is_page(path))
    except OSError:
        return False
