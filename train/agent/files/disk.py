"""Write, read, and remove files; find the file system that holds them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from _thread import get_ident
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

DISK_RESERVE = 64 << 20  # bytes that stay free for logs
DISK_LOW = 2 << 30  # bytes; with less a disk is nearly full
_PIECE = 1 << 20
_AT_ONCE = 1 << 30  # bytes that the kernel copies with one call
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")


def write_atomic(path: str, data: bytes, mode: int = 0o600, *, sync: bool = False) -> None:
    """Replace the file `path` atomically: readers see the old or the new content.

    Args:
        path: The file.
        data: Its new content.
        mode: Of the file.
        sync: Write to the disk before the file is replaced, so that the content survives a power failure.

    Raises:
        OSError: it cannot be written; the old one is left as it was.
    """
    temporary = f"{path}.{os.getpid()}-{get_ident()}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
            os.fchmod(fd, mode)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise


def write_all(fd: int, data: Union[bytes, memoryview]) -> None:
    """Write all of `data` to a blocking file descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def copy_file(source: str, target: str, mode: int, mtime_ns: Optional[int] = None) -> None:
    """Copy a file to a new `target` with this mode and time of change; a link as `source` is not followed.

    The kernel copies a large file. On XFS and Btrfs, both files then share their blocks until one of them is changed.
    A hard link would not be a copy: a program that writes to one of the files changes both.

    Raises:
        OSError: it cannot be read or written.
    """
    with contextlib.ExitStack() as stack:
        reads = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        stack.callback(os.close, reads)
        writes = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, writes)
        if os.fstat(reads).st_size >= _PIECE:
            _copy_in_kernel(reads, writes)
        while piece := os.read(reads, _PIECE):
            write_all(writes, piece)
        finish_file(writes, mode, mtime_ns)


def _copy_in_kernel(reads: int, writes: int) -> None:
    """Copy what the kernel can copy of a file; both positions are after that."""
    copy = getattr(os, "copy_file_range", None)  # missing if Python was built with an old C library
    with contextlib.suppress(OSError):
        while copy and copy(reads, writes, _AT_ONCE):
            continue


def finish_file(fd: int, mode: int, mtime_ns: Optional[int] = None) -> None:
    """Set mode and time of change of a complete file."""
    os.fchmod(fd, mode)
    if mtime_ns is not None:
        os.utime(fd, ns=(mtime_ns, mtime_ns))


def remove_file(path: str) -> None:
    """Remove a file, link, or socket; a missing one is success."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a directory and its contents without following links; a missing one is success.

    Raises:
        OSError: something in it cannot be removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        remove_file(path)
        return
    with contextlib.suppress(FileNotFoundError):  # another process removes it, too
        if mode & 0o700 != 0o700:
            os.chmod(path, 0o700)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(entry.path)
                else:
                    remove_file(entry.path)
        os.rmdir(path)


def make_scratch(link: str, parent: str) -> str:
    """Return the directory to which `link` leads, and create both if necessary: below `parent`, with a short path.

    Sockets in it have paths of at most 107 bytes, see unix(7).

    Raises:
        OSError: it cannot be created.
    """
    with contextlib.suppress(OSError):
        path = os.readlink(link)
        if os.path.isdir(path):
            return path
        os.unlink(link)
    path = os.path.join(parent, "fleet-" + os.urandom(4).hex())
    os.symlink(path, link)
    os.mkdir(path, 0o700)
    return path


def remove_scratch(link: str) -> None:
    """Remove a directory of `make_scratch` with all that is in it, as far as that is possible."""
    with contextlib.suppress(OSError):
        path = os.readlink(link)
        os.unlink(link)
        remove_tree(path)


def make_directory(path: str) -> None:
    """Create a directory and its parents, readable only by the owner."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def read_text(path: str) -> str:
    """Return the text of a small file; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in a file, or None if there is none."""
    try:
        with open(path, "rb") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def list_names(directory: str) -> List[str]:
    """Return the names in a directory; empty if it is missing or unreadable."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def free_space(path: str) -> Tuple[int, int]:
    """Return the bytes that an ordinary user may write to the file system of `path`, and its size."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def readable_size(count: int) -> str:
    """Format a number of bytes: ``1.5 GiB``."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


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


def parse_mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts in the text of /proc/self/mountinfo. Source: proc(5)."""
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, more = head.split(" "), tail.split(" ")
        if separator and len(fields) >= 6 and len(more) >= 3:
            yield Mount(unescape(fields[3]), unescape(fields[4]), more[0], unescape(more[1]), more[2])


def mount_of(mountinfo: str, path: str) -> Optional[Mount]:
    """Return the mount that holds a path.

    Args:
        mountinfo: Text of /proc/self/mountinfo.
        path: Absolute, with links resolved.
    """
    best: Optional[Mount] = None
    for mount in parse_mounts(mountinfo):
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


def contains(directory: str, path: str) -> bool:
    """Return True if a path is `directory` or below it; both are absolute and have no trailing slash."""
    return (path + "/").startswith(directory.rstrip("/") + "/")
