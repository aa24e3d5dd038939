"""Files of the store with many small contents each: to create a file takes longer than to write a small content.

    content content … index length        the index: a JSON object, [offset, size] by SHA-256; its length: 8 bytes

A pack is complete when it has its name, and never changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import Collection, Dict, List, NamedTuple, Tuple

from train.agent.files.disk import finish_file, list_names, make_directory, remove_file, write_all

PACKED_BYTES = 1 << 16
"""Smaller contents are packed."""

STAMP_NS = 315_532_800 * 10**9
"""The time of change of all files in the store: one that a task wrote to has another."""

_DIRECTORY = "packs"
_LENGTH = struct.Struct(">Q")
_LONGEST_INDEX = 64 << 20
_MOST_OPEN = 64  # packs that a reader keeps open
_MOST_PACKS = 64
_MERGED_TO = 32  # packs that stay if there are too many; the contents of the smaller ones become one more
_WORTH = 2  # a pack is written again if less than one part of this many is needed


class Place(NamedTuple):
    """A packed content."""

    pack: str  # path
    offset: int
    size: int


def find_packed(store: str) -> Dict[str, Place]:
    """Return the packed contents of a store by their hashes."""
    places: Dict[str, Place] = {}
    for path in _list_packs(store):
        for digest, (offset, size) in _read_index(path).items():
            places[digest] = Place(path, offset, size)
    return places


def _list_packs(store: str) -> List[str]:
    directory = os.path.join(store, _DIRECTORY)
    return [os.path.join(directory, name) for name in list_names(directory)]


def _read_index(path: str) -> Dict[str, Tuple[int, int]]:
    """Return offset and size of each content; empty if the pack is damaged or was removed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        status = os.fstat(fd)
        (length,) = _LENGTH.unpack(os.pread(fd, _LENGTH.size, status.st_size - _LENGTH.size))
        if status.st_mtime_ns != STAMP_NS or length > _LONGEST_INDEX:
            return {}
        index = json.loads(os.pread(fd, length, status.st_size - _LENGTH.size - length))
        return {str(digest): (int(offset), int(size)) for digest, (offset, size) in index.items()}
    except (OSError, ValueError, TypeError, AttributeError, struct.error):
        return {}
    finally:
        os.close(fd)


class PackWriter:
    """Write a new pack, which appears in the store when it is complete.

    Args:
        store: Directory of the store.

    Attributes:
        path: The pack.
        fd: Descriptor that appends to it; -1 if there is none.
    """

    def __init__(self, store: str) -> None:
        name = os.urandom(8).hex()
        self.path = os.path.join(store, f"{name}.new")
        self._final = os.path.join(store, _DIRECTORY, name)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._index: Dict[str, Tuple[int, int]] = {}
        self.end = 0  # of the complete contents

    def add(self, digest: str, size: int) -> None:
        """Add the content that was written after the last one."""
        self._index[digest] = (self.end, size)
        self.end += size

    def offset_of(self, digest: str) -> int:
        """Return the offset of a content that is complete, or else of the next one."""
        return self._index.get(digest, (self.end, 0))[0]

    def open(self) -> int:
        """Return a new descriptor for reading."""
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it has just been completed
            return os.open(self._final, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Complete the pack without an incomplete last content; repeated calls do nothing.

        Raises:
            OSError: it cannot be written; it is removed.
        """
        if self.fd < 0:
            return
        try:
            if self._index:
                os.ftruncate(self.fd, self.end)
                os.lseek(self.fd, self.end, os.SEEK_SET)
                index = json.dumps(self._index, separators=(",", ":")).encode()
                write_all(self.fd, index + _LENGTH.pack(len(index)))
                finish_file(self.fd, 0o444, STAMP_NS)
                make_directory(os.path.dirname(self._final))
                os.replace(self.path, self._final)
                self.path = self._final
        finally:
            os.close(self.fd)
            self.fd = -1
            if self.path != self._final:
                remove_file(self.path)

    def discard(self) -> None:
        """Remove the pack, which is not complete."""
        self._index.clear()
        self.close()


class PackReader:
    """Context manager: read packed contents; the packs stay open, up to a limit."""

    def __init__(self) -> None:
        self._descriptors: Dict[str, int] = {}

    def __enter__(self) -> PackReader:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._descriptors.values():
            os.close(fd)

    def read(self, place: Place) -> bytes:
        """Return a content.

        Raises:
            OSError: it cannot be read.
        """
        fd = self._descriptors.get(place.pack, -1)
        if fd < 0:
            if len(self._descriptors) >= _MOST_OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            fd = self._descriptors[place.pack] = os.open(place.pack, os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(fd, place.size, place.offset)
        if len(data) != place.size:
            raise OSError(f"{place.pack} is incomplete")
        return data


def prune_packs(store: str, keep: Collection[str]) -> int:
    """Remove packs of which no content is in `keep`; write the others again if most of them is not needed.

    If many packs are left, the smaller ones become one: each upload adds a pack.

    Returns:
        The bytes that this frees.
    """
    freed = 0
    sizes: Dict[str, int] = {}  # of the packs that are left as they are
    for path in _list_packs(store):
        index = _read_index(path)
        needed = {digest: Place(path, *place) for digest, place in index.items() if digest in keep}
        size = sum(size for _, size in index.values())
        needed_size = sum(place.size for place in needed.values())
        if needed and _WORTH * needed_size >= size:
            sizes[path] = size
            continue
        with contextlib.suppress(OSError):
            if needed:
                _copy(store, needed)
            freed += size - needed_size
            remove_file(path)
    if len(sizes) > _MOST_PACKS:
        with contextlib.suppress(OSError):  # then the next request tries it again
            _merge(store, sorted(sizes, key=lambda path: sizes[path])[:-_MERGED_TO])
    return freed


def _merge(store: str, paths: List[str]) -> None:
    """Replace packs by one with all their contents."""
    places = {digest: Place(path, *place) for path in paths for digest, place in _read_index(path).items()}
    _copy(store, places)
    for path in paths:
        remove_file(path)


def _copy(store: str, places: Dict[str, Place]) -> None:
    """Write packed contents to a new pack."""
    pack = PackWriter(store)
    try:
        with PackReader() as reader:
            for digest, place in places.items():
                write_all(pack.fd, reader.read(place))
                pack.add(digest, place.size)
    except BaseException:
        pack.discard()
        raise
    pack.close()
