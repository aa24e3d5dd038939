"""Contents stored by their hash: receive them, and create a task's directory from them."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
from typing import Callable, Collection, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from train.agent.files.containment import is_inner_link, is_inner_path
from train.agent.files.disk import (
    copy_file,
    finish_file,
    list_names,
    make_directory,
    remove_file,
    remove_tree,
    write_all,
    write_new,
)
from train.agent.files.packs import PACKED_BYTES, STAMP_NS, PackReader, PackWriter, find_packed, prune_packs
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, NeedContents, Refusal

_SHA256 = re.compile(r"[0-9a-f]{64}")
_AT_ONCE = 1 << 20  # bytes
_NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT)  # the last: it is in a pack


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
    packed = find_packed(store)
    for entry in entries:
        if entry.sha256 and entry.kind in (EntryKind.FILE, EntryKind.DATA) and entry.sha256 not in seen:
            seen.add(entry.sha256)
            is_packed = entry.sha256 in packed and packed[entry.sha256].size == entry.size
            if not is_packed and not is_kept(store, entry.sha256, entry.size):
                sizes[entry.sha256] = entry.size
    return NeedContents(list(sizes), sum(sizes.values()))


def to_pack(entries: Sequence[Entry]) -> Set[str]:
    """Return the hashes of the contents that are stored in packs: small ones that no working directory links to."""
    linked = {entry.sha256 for entry in entries if entry.kind is EntryKind.DATA}
    small = {entry.sha256 for entry in entries if entry.kind is EntryKind.FILE and entry.size < PACKED_BYTES}
    return small - linked


def _never() -> bool:
    return False


def hash_file(path: str, is_over: Callable[[], bool] = _never) -> Tuple[str, int]:
    """Return the SHA-256 of a file's content in hexadecimal, and its size in bytes.

    Args:
        path: The file.
        is_over: Called for each piece; if it returns True, the result is not needed any more.

    Raises:
        OSError: the file cannot be read.
        InterruptedError: `is_over` returned True.
    """
    digest = hashlib.sha256()
    size = 0
    block = memoryview(bytearray(_AT_ONCE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            if is_over():
                raise InterruptedError
            digest.update(block[:count])
            size += count
    return digest.hexdigest(), size


class Receiver:
    """Receive contents one after the other, and store each after its hash was verified.

    Args:
        store: Directory of the store.
        expected: Hash and size of each, in the order in which they come.
        packed: Hashes of those that are stored in a pack.
        path_of: Returns the path of one of the others, given its hash.

    Attributes:
        contents: Hash and size of each.
        received: Number of bytes that were received.
        is_broken: One of the contents was not what was announced.
        on_received: Called when `received` or `is_broken` has changed.
        moved: Paths of contents that are not in the store any more, by their hashes.
    """

    def __init__(
        self,
        store: str,
        expected: Sequence[Tuple[str, int]],
        packed: Collection[str] = (),
        path_of: Optional[Callable[[str], str]] = None,
    ) -> None:
        self._store = store
        self.contents = list(expected)
        self.received = 0
        self.is_broken = False
        self.on_received: Callable[[], None] = lambda: None
        self.moved: Dict[str, str] = {}
        self._expected = list(reversed(expected))
        self._packed = packed
        self._path_of = path_of or functools.partial(object_path, store)
        self._fd = -1
        self._digest = ""
        self._size = 0
        self._left = 0
        self._hash = hashlib.sha256()
        self._directories: Set[str] = set()
        make_directory(store)
        is_packing = any(digest in packed for digest, _ in expected)
        self._pack: Optional[PackWriter] = PackWriter(store) if is_packing else None
        self._next()

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
                self._next()
            self.on_received()

    def need(self) -> NeedContents:
        """Return what is still missing, after a source failed."""
        if self._fd < 0:
            return NeedContents([], 0)
        rest = [(self._digest, self._size), *reversed(self._expected)]
        offset = self._size - self._left
        return NeedContents([digest for digest, _ in rest], sum(size for _, size in rest) - offset, offset=offset)

    def open_content(self, digest: str) -> Tuple[int, int]:
        """Return a descriptor of a content that is complete or has begun to arrive, and its offset."""
        if self._pack is not None and digest in self._packed:
            return self._pack.open(), self._pack.offset_of(digest)
        for path in (self._temporary(digest), self._path_of(digest)):
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
        return os.open(self.moved.get(digest, ""), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), 0

    def finish(self) -> None:
        """Check that all contents have come.

        Raises:
            RefusedError: one of them is not complete.
            OSError: they cannot be written.
        """
        if self._fd >= 0:
            raise RefusedError(Refusal.BUNDLE, "the contents ended before all of them had come")
        if self._pack is not None:
            self._pack.close()

    def close(self) -> None:
        """Remove a partly written file; keep complete contents."""
        if self._fd >= 0:
            if not self._is_packing():
                os.close(self._fd)
                remove_file(self._temporary(self._digest))
            self._fd = -1
            self._break()
        if self._pack is not None:
            with contextlib.suppress(OSError):  # then its contents are sent again
                self._pack.close()

    def _break(self) -> None:
        self.is_broken = True
        self.on_received()

    def _temporary(self, digest: str) -> str:
        return os.path.join(self._store, f"{digest}.{os.getpid()}.new")

    def _is_packing(self) -> bool:
        return self._pack is not None and self._fd == self._pack.fd

    def _next(self) -> None:
        while self._expected and self._fd < 0:
            self._digest, self._size = self._expected.pop()
            self._left = self._size
            self._hash = hashlib.sha256()
            if self._pack is not None and self._digest in self._packed:
                self._fd = self._pack.fd
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._fd = os.open(self._temporary(self._digest), flags, 0o600)
            if self._left == 0:
                self._complete()

    def _complete(self) -> None:
        if self._hash.hexdigest() != self._digest:
            self._left, self._hash = self._size, hashlib.sha256()
            os.lseek(self._fd, self._pack.end if self._pack is not None and self._is_packing() else 0, os.SEEK_SET)
            self._break()
            raise RefusedError(Refusal.BUNDLE, f"contents do not have the hash {self._digest[:12]}… they came under")
        if self._pack is not None and self._is_packing():
            self._pack.add(self._digest, self._size)
        else:
            self._place()
        self._fd = -1

    def _place(self) -> None:
        """Give the complete file its name."""
        finish_file(self._fd, 0o444, STAMP_NS)
        os.close(self._fd)
        path = self._path_of(self._digest)
        directory = os.path.dirname(path)
        if directory not in self._directories:
            make_directory(directory)
            self._directories.add(directory)
        os.replace(self._temporary(self._digest), path)


class _Source:
    """The contents of a store, and the files that a job takes from earlier ones."""

    def __init__(self, store: str, take: Callable[[Entry, str], bool], packs: PackReader) -> None:
        self._store = store
        self._take = take
        self._packs = packs
        self._packed = find_packed(store)

    def create(self, entry: Entry, target: str) -> None:
        """Create a file or link."""
        if entry.kind is EntryKind.LINK:
            os.symlink(entry.target, target)
        elif entry.kind is EntryKind.DATA:
            self._link(entry, target)
        elif not self._take(entry, target):
            self._copy(entry, target, entry.mode & 0o777)

    def _link(self, entry: Entry, target: str) -> None:
        try:
            os.link(object_path(self._store, entry.sha256), target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy(entry, target, 0o444)

    def _copy(self, entry: Entry, target: str, mode: int) -> None:
        place = self._packed.get(entry.sha256)
        if place is None:
            copy_file(object_path(self._store, entry.sha256), target, mode)
        else:
            write_new(target, self._packs.read(place), mode)


def read_contents(store: str, hashes: Sequence[str], piece_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of contents of the store, in that order, in pieces of at most `piece_bytes`.

    Raises:
        RefusedError: the store does not have one of them; nothing was returned before.
        OSError: one cannot be read.
    """
    packed = find_packed(store)
    if not all(digest in packed or os.path.isfile(object_path(store, digest)) for digest in hashes):
        raise RefusedError(Refusal.BUNDLE, "this host does not hold all contents of the job any more")
    with PackReader() as packs:
        for digest in hashes:
            if digest in packed:
                try:
                    data = packs.read(packed[digest])
                except FileNotFoundError:  # another request has just written the content to another pack
                    packed.update(find_packed(store))
                    data = packs.read(packed[digest])
                yield data
                continue
            with open(object_path(store, digest), "rb", buffering=0) as file:
                while data := file.read(piece_bytes):
                    yield data


def take_nothing(_entry: Entry, _target: str) -> bool:
    """Return False: every file is copied."""
    return False


def materialise(
    store: str, entries: Sequence[Entry], directory: str, take: Callable[[Entry, str], bool] = take_nothing
) -> None:
    """Make `directory` contain exactly `entries`; earlier contents are removed.

    Args:
        store: Directory of the store.
        entries: The paths.
        directory: The directory.
        take: Moves a file with the content of an entry to a path, or returns False if there is none; then it is
            copied.

    Raises:
        OSError: the disk is full, or the store was removed under our feet.
    """
    remove_tree(directory)
    make_directory(directory)
    made = {directory}
    directories: List[Tuple[str, int]] = []
    with PackReader() as packs:
        source = _Source(store, take, packs)
        for entry in entries:
            target = os.path.join(directory, entry.path)
            parent = target if entry.kind is EntryKind.DIRECTORY else os.path.dirname(target)
            if parent not in made:
                make_directory(parent)
                made.add(parent)
            if entry.kind is EntryKind.DIRECTORY:
                directories.append((target, entry.mode))
            else:
                source.create(entry, target)
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
    freed = prune_packs(store, keep)
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
