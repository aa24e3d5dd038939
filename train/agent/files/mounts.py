"""Find the mount that holds a path. Source: proc(5)."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional

from train.agent.files.containment import contains

_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")


class Mount(NamedTuple):
    """A mounted file system."""

    root: str  # directory of the file system that is mounted
    point: str  # directory where it is mounted
    kind: str  # type of the file system
    source: str
    options: str


def read_mounts() -> str:
    """Return the text of /proc/self/mountinfo.

    Raises:
        OSError: it cannot be read.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def mount_of(mountinfo: str, path: str) -> Optional[Mount]:
    """Return the mount that holds a path.

    Args:
        mountinfo: Text of /proc/self/mountinfo.
        path: Absolute, with links resolved.
    """
    best: Optional[Mount] = None
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, more = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(more) < 3:
            continue
        mount = Mount(unescape(fields[3]), unescape(fields[4]), more[0], unescape(more[1]), more[2])
        if contains(mount.point, path) and (best is None or len(mount.point) >= len(best.point)):
            best = mount  # a later one at the same place covers the earlier one
    return best


def unescape(value: str) -> str:
    """Return a text in which backslashes escape characters as in C."""

    def replace(match: "re.Match[bytes]") -> bytes:
        code = match[1]
        if code.isdigit():
            return bytes([int(code, 8) & 0xFF])
        return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(code, code)

    return os.fsdecode(_ESCAPE.sub(replace, os.fsencode(value)))
