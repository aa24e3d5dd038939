"""Unchanged copies of large files move from the directory of an ended job to that of the next job.

A job may change its copies of uploaded files. If it has not, the next job that needs the same content takes the copy,
and the ended job gets a link to the content in the store instead. Thus nothing is copied, and no file disappears.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from train.agent.files.contents import hash_file, is_kept, object_path
from train.agent.files.disk import read_json, remove_file, write_atomic
from train.agent.files.mounts import mount_of, read_mounts
from train.agent.files.packs import PACKED_BYTES
from train.agent.protocol.records import Entry, EntryKind

if TYPE_CHECKING:
    from train.agent.files.paths import TaskPaths

_SHOW_MAPPED_WRITES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")


class _Copy(NamedTuple):
    """A copy of a content as it was before its task started."""

    path: str
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    shows_writes: bool  # every write since then has changed the times

    def has_stamp(self, status: os.stat_result) -> bool:
        """Return True if a file with this status has not been written to, renamed, or linked."""
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_nlink == 1
            and (status.st_size, status.st_ino) == (self.size, self.inode)
            and (status.st_mtime_ns, status.st_ctime_ns) == (self.mtime_ns, self.ctime_ns)
        )


def _is_recorded(entry: Entry) -> bool:
    return entry.kind is EntryKind.FILE and entry.size >= PACKED_BYTES


def record_copies(paths: TaskPaths, entries: Sequence[Entry]) -> None:
    """Record the large files of a task that has not started yet.

    Raises:
        OSError: a file cannot be read, or the record cannot be written.
    """
    copies: List[List[object]] = []
    for entry in entries:
        if _is_recorded(entry):
            status = os.lstat(os.path.join(paths.source, entry.path))
            stamp = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
            copies.append([entry.sha256, entry.path, *stamp])
    if copies:
        write_atomic(paths.copies, json.dumps({"copies": copies}).encode("utf-8", "surrogateescape"))


class EarlierCopies:
    """The recorded copies of ended jobs.

    Args:
        store: Directory of the store.
        tasks: Tasks of jobs that have ended and of which no process runs, newest first; read if one can be of use.
        entries: The paths of the next job.
    """

    def __init__(self, store: str, tasks: Iterable[TaskPaths], entries: Sequence[Entry]) -> None:
        self._store = store
        self._by_hash: Dict[str, List[_Copy]] = {}
        wanted = {entry.sha256 for entry in entries if _is_recorded(entry)}
        for task in tasks if wanted else ():
            for digest, copy in _read_copies(task):
                if digest in wanted and copy.has_stamp(_status(copy.path)):
                    self._by_hash.setdefault(digest, []).append(copy)

    def size_bytes(self, entries: Sequence[Entry]) -> int:
        """Return the size of the files among `entries` for which there is a copy."""
        left = {digest: len(copies) for digest, copies in self._by_hash.items()}
        size = 0
        for entry in entries:
            if entry.kind is EntryKind.FILE and left.get(entry.sha256):
                left[entry.sha256] -= 1
                size += entry.size
        return size

    def take(self, entry: Entry, target: str) -> bool:
        """Move an unchanged copy of a content to `target`; return False if there is none."""
        copies = self._by_hash.get(entry.sha256, [])
        while copies:
            copy = copies.pop(0)
            if is_kept(self._store, entry.sha256, entry.size) and _is_unchanged(copy, entry.sha256):
                return self._exchange(copy.path, entry, target)
        return False

    def _exchange(self, path: str, entry: Entry, target: str) -> bool:
        """Move a file; its earlier path names the same content at any time, whenever this process is killed."""
        link = os.path.join(self._store, f"{os.urandom(8).hex()}.new")  # removed with leftovers of transfers
        try:
            os.link(path, target)
            os.link(object_path(self._store, entry.sha256), link)
            os.rename(link, path)
        except OSError:
            remove_file(link)
            remove_file(target)
            return False
        os.chmod(target, entry.mode & 0o777)
        return True


def _read_copies(task: TaskPaths) -> List[Tuple[str, _Copy]]:
    parent, name = os.path.split(task.source)
    source = os.path.join(os.path.realpath(parent), name)
    try:
        # The task may have changed a file in the tick of the file system's clock in which the file was recorded.
        recorded_ns = os.stat(task.copies).st_mtime_ns if _shows_mapped_writes(source) else 0
        rows = (read_json(task.copies) or {}).get("copies") or []
        return [
            (str(digest), _Copy(os.path.join(source, path), size, inode, mtime_ns, ctime_ns, ctime_ns < recorded_ns))
            for digest, path, size, inode, mtime_ns, ctime_ns in rows
        ]
    except (OSError, TypeError, ValueError):
        return []


def _status(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except OSError:
        return os.stat_result((0,) * 10)


def _is_unchanged(copy: _Copy, digest: str) -> bool:
    """Return True if no process can write to a copy, and none has done it or moved its directory elsewhere."""
    if os.path.realpath(copy.path) != copy.path:
        return False
    try:
        fd = os.open(copy.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if _is_open_for_writing(fd) or not copy.has_stamp(os.fstat(fd)):
            return False
        return copy.shows_writes or hash_file(copy.path)[0] == digest
    except OSError:
        return False
    finally:
        os.close(fd)


def _shows_mapped_writes(path: str) -> bool:
    """Return True if writes through a mapping of a file at `path` surely change its times; on tmpfs they do not."""
    mount = mount_of(read_mounts(), path)
    return mount is not None and mount.kind in _SHOW_MAPPED_WRITES


def _is_open_for_writing(fd: int) -> bool:
    """Return True if a process has this file open for writing, or the file system does not report it."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return True
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent if another process opens it in this moment
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        signal.signal(signal.SIGIO, previous)
    return False
