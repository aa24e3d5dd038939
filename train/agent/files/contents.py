"""Contents stored by their hash: receive them, and create a task's directory from them."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import zlib
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from train.agent.files.disk import (
    copy_file,
    finish_file,
    list_names,
    make_directory,
    remove_file,
    remove_tree,
    write_all,
)
from train.agent.files.paths import is_inner_link, is_inner_path
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, NeedContents, Refusal

_SHA256 = re.compile(r"[0-9a-f]{64}")
_AT_ONCE = 1 << 20  # bytes
_NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP)

BLOCK_BYTES = 1 << 19
_SAMPLE_BYTES = 1 << 14
_LEVEL = 1
_WORTH = 0.9  # a larger part of the original size is not worth the time to decompress it

STAMP_NS = 315_532_800 * 10**9
"""The time of change of all files in the store: one that a task wrote to has another."""


def _invalid_bundle(reason: str) -> RefusedError:
    return RefusedError(Refusal.REQUEST, f"invalid bundle: {reason}")


def _check_path(path: str) -> None:
    if not is_inner_path(path):
        raise _invalid_bundle(f"{path!r} is not a path inside the working directory")


def _check_link(entry: Entry) -> None:
    if not is_inner_link(entry.path, entry.target):
        raise _invalid_bundle(f"the link {entry.path!r} points outside the working directory, to {entry.target!r}")


def check_entries(entries: Sequence[Entry]) -> None:
    """Check that all entries stay inside the working directory and are consistent.

    Raises:
        RefusedError: one of them does not.
    """
    kinds: Dict[str, EntryKind] = {}
    sizes: Dict[str, int] = {}
    for entry in entries:
        _check_path(entry.path)
        if entry.path in kinds:
            raise _invalid_bundle(f"{entry.path!r} is listed twice")
        kinds[entry.path] = entry.kind
        if entry.kind is EntryKind.LINK:
            _check_link(entry)
        elif entry.kind is not EntryKind.DIRECTORY:
            if not _SHA256.fullmatch(entry.sha256) or entry.size < 0:
                raise _invalid_bundle(f"{entry.path!r} has an invalid hash or size")
            if sizes.setdefault(entry.sha256, entry.size) != entry.size:
                raise _invalid_bundle(f"{entry.path!r} has the hash of contents of another size")
    for path in kinds:
        parent = path.rpartition("/")[0]
        while parent:
            if kinds.get(parent, EntryKind.DIRECTORY) is not EntryKind.DIRECTORY:
                raise _invalid_bundle(f"{path!r} is below {parent!r}, which is not a directory")
            parent = parent.rpartition("/")[0]


def object_path(store: str, digest: str) -> str:
    """Return the path of the contents with this hash."""
    return os.path.join(store, digest[:2], digest)


def is_kept(store: str, digest: str, size: int) -> bool:
    """Return True if the store has a file with a content of this size, and no task wrote to it."""
    try:
        status = os.stat(object_path(store, digest))
    except FileNotFoundError:
        return False
    return status.st_size == size and status.st_mtime_ns == STAMP_NS


def missing(store: str, entries: Sequence[Entry]) -> NeedContents:
    """Return the contents that `entries` need and the store lacks, each once, in order."""
    sizes: Dict[str, int] = {}
    seen: Set[str] = set()
    for entry in entries:
        if entry.sha256 and entry.kind in (EntryKind.FILE, EntryKind.DATA) and entry.sha256 not in seen:
            seen.add(entry.sha256)
            if not is_kept(store, entry.sha256, entry.size):
                sizes[entry.sha256] = entry.size
    return NeedContents(list(sizes), sum(sizes.values()))


def hash_file(path: str) -> Tuple[str, int]:
    """Return the SHA-256 of a file's content in hexadecimal, and its size in bytes.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_AT_ONCE):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size


class Receiver:
    """Receive contents one after the other, and store each after its hash was verified.

    Args:
        store: Directory of the store.
        expected: Hash and size of each, in the order in which they come.
        path_of: Returns the path of a complete content, given its hash; None: its path in the store.

    Attributes:
        contents: Hash and size of each.
        received: Number of bytes that were received.
        is_broken: One of the contents was not what was announced.
        on_received: Called when `received` or `is_broken` has changed.
        moved: Paths of contents that are not in the store any more, by their hashes.
    """

    def __init__(
        self, store: str, expected: Sequence[Tuple[str, int]], path_of: Optional[Callable[[str], str]] = None
    ) -> None:
        self._store = store
        self.contents = list(expected)
        self.received = 0
        self.is_broken = False
        self.on_received: Callable[[], None] = lambda: None
        self.moved: Dict[str, str] = {}
        self._path_of = path_of or functools.partial(object_path, store)
        self._next = 0
        self._fd = -1
        self._left = 0
        self._hash = hashlib.sha256()
        make_directory(store)
        self._open_next()

    def feed(self, data: bytes) -> None:
        """Process bytes of the contents.

        Raises:
            RefusedError: they are not what was announced.
            OSError: they cannot be written.
        """
        view = memoryview(data)
        while view:
            if self._fd < 0:
                raise RefusedError(Refusal.BUNDLE, "more contents came than were asked for")
            piece = view[: self._left]
            view = view[len(piece) :]
            self._left -= len(piece)
            self._hash.update(piece)
            write_all(self._fd, piece)
            self.received += len(piece)
            if self._left == 0:
                self._complete()
                self._open_next()
            self.on_received()

    def need(self) -> NeedContents:
        """Return what is still missing, after a source failed."""
        rest = self.contents[self._next :]
        offset = rest[0][1] - self._left if rest else 0
        return NeedContents([digest for digest, _ in rest], sum(size for _, size in rest) - offset, offset=offset)

    def open_content(self, digest: str) -> int:
        """Return a descriptor of a content that is complete or has begun to arrive."""
        for path in (self._temporary(digest), self._path_of(digest)):
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.open(self.moved.get(digest, ""), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def finish(self) -> None:
        """Check that all contents have come.

        Raises:
            RefusedError: one of them is not complete.
        """
        if self._fd >= 0:
            raise RefusedError(Refusal.BUNDLE, "the contents ended before all of them had come")

    def close(self) -> None:
        """Remove a partly written file; keep complete contents."""
        if self._fd >= 0:
            os.close(self._fd)
            remove_file(self._temporary(self.contents[self._next][0]))
            self._fd = -1
            self._break()

    def _break(self) -> None:
        self.is_broken = True
        self.on_received()

    def _temporary(self, digest: str) -> str:
        return os.path.join(self._store, f"{digest}.{os.getpid()}.new")

    def _open_next(self) -> None:
        while self._next < len(self.contents) and self._fd < 0:
            digest, self._left = self.contents[self._next]
            self._hash = hashlib.sha256()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._temporary(digest), flags, 0o600)
            if self._left == 0:
                self._complete()

    def _complete(self) -> None:
        digest, size = self.contents[self._next]
        if self._hash.hexdigest() != digest:
            self._left, self._hash = size, hashlib.sha256()
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._break()
            raise RefusedError(Refusal.BUNDLE, f"contents do not have the hash {digest[:12]}… they came under")
        finish_file(self._fd, 0o444, STAMP_NS)
        os.close(self._fd)
        self._fd = -1
        path = self._path_of(digest)
        make_directory(os.path.dirname(path))
        os.replace(self._temporary(digest), path)
        self._next += 1


def _create(store: str, entry: Entry, target: str) -> None:
    """Create a file or link; data are a link to the store where the file system has links."""
    if entry.kind is EntryKind.LINK:
        os.symlink(entry.target, target)
        return
    path, mode = object_path(store, entry.sha256), entry.mode & 0o777
    if entry.kind is EntryKind.DATA:
        try:
            os.link(path, target)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            mode = 0o444
    copy_file(path, target, mode)


def read_contents(store: str, hashes: Sequence[str], piece_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of contents of the store, in that order, in pieces of at most `piece_bytes`.

    Raises:
        RefusedError: the store does not have one of them; nothing was returned before.
        OSError: one cannot be read.
    """
    paths = [object_path(store, digest) for digest in hashes]
    if not all(map(os.path.isfile, paths)):
        raise RefusedError(Refusal.BUNDLE, "this host does not hold all contents of the job any more")
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(piece_bytes):
                yield data


def materialise(store: str, entries: Sequence[Entry], directory: str) -> None:
    """Make `directory` contain exactly `entries`; earlier contents are removed.

    Args:
        store: Directory of the store.
        entries: The paths.
        directory: The directory.

    Raises:
        OSError: the disk is full, or the store was removed under our feet.
    """
    remove_tree(directory)
    make_directory(directory)
    made = {directory}
    directories: List[Tuple[str, int]] = []
    for entry in entries:
        target = os.path.join(directory, entry.path)
        parent = target if entry.kind is EntryKind.DIRECTORY else os.path.dirname(target)
        if parent not in made:
            make_directory(parent)
            made.add(parent)
        if entry.kind is EntryKind.DIRECTORY:
            directories.append((target, entry.mode))
        else:
            _create(store, entry, target)
    for target, mode in reversed(directories):
        os.chmod(target, mode & 0o777 | 0o700)


def bytes_needed(entries: Sequence[Entry], need: NeedContents) -> int:
    """Return the disk space of a bundle: missing contents, and copies that the task may change."""
    return need.size + sum(entry.size for entry in entries if entry.kind is EntryKind.FILE)


def objects_of(entries: Sequence[Entry]) -> Set[str]:
    """Return the hashes that a bundle uses."""
    return {entry.sha256 for entry in entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)}


def prune_objects(store: str, keep: Set[str]) -> int:
    """Remove all contents but those in `keep`, and leftovers of broken transfers.

    Returns:
        The bytes that this frees: a content that a job's directory links to takes the same room as before.
    """
    freed = 0
    for parent in list_names(store):
        directory = os.path.join(store, parent)
        if parent.endswith(".new"):
            remove_file(directory)
            continue
        for digest in list_names(directory):
            if digest not in keep and _SHA256.fullmatch(digest):
                path = os.path.join(directory, digest)
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    freed += status.st_blocks * 512 if status.st_nlink == 1 else 0
                remove_file(path)
    return freed


# --- blocks: contents on their way to another computer, each compressed by itself if that shrinks it ---------------


def join_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of `BLOCK_BYTES`; the last one may be shorter."""
    block = bytearray()
    for piece in pieces:
        block += piece
        while len(block) >= BLOCK_BYTES:
            yield bytes(block[:BLOCK_BYTES])
            del block[:BLOCK_BYTES]
    if block:
        yield bytes(block)


def pack_block(block: bytes) -> Tuple[bytes, int]:
    """Return a block as it is sent, and its size if that is compressed; 0: it is sent as it is.

    A sample from the middle decides whether it is compressed at all.
    """
    start = max(0, len(block) - _SAMPLE_BYTES) // 2
    sample = block[start : start + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _LEVEL)) >= _WORTH * len(sample):
        return block, 0
    packed = zlib.compress(block, _LEVEL)
    return (packed, len(block)) if len(packed) < _WORTH * len(block) else (block, 0)


def unpack_block(data: bytes, size: int) -> bytes:
    """Return a block of which `pack_block` returned `data` and `size`.

    Raises:
        RefusedError: it is damaged, or larger than announced.
    """
    if not size:
        return data
    if not 0 < size <= BLOCK_BYTES:
        raise RefusedError(Refusal.BUNDLE, "a block of contents is too large")
    stream = zlib.decompressobj()
    try:
        block = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise RefusedError(Refusal.BUNDLE, f"the contents arrived damaged: {error}") from error
    if len(block) != size or not stream.eof or stream.unused_data:
        raise RefusedError(Refusal.BUNDLE, "the contents arrived damaged: a block has another size")
    return block
