"""Compress the contents that hosts request, once for all hosts, while they are being sent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.remote.upload.hashes import Stamp
from fleet.steps import Again
from train.agent.files.blocks import BLOCK_BYTES, join_blocks, pack_block

_THREADS = 4
_COMPRESSED_FIRST = 16  # blocks; buffers on the way to a host let a slow network look fast until they are full
_WAIT_S = 60.0
_CLOSE_S = 5.0


class Content(NamedTuple):
    """A file's content as it was scanned.

    Attributes:
        path: The file.
        sha256: Hash of the content.
        size: Size in bytes.
        stamp: Stamp with which the file has this content; None: unknown.
    """

    path: Path
    sha256: str
    size: int
    stamp: Stamp | None = None


class Piece(NamedTuple):
    """A block of the contents.

    Attributes:
        data: Its bytes as they are sent.
        size: Number of bytes before compression; 0: they are not compressed.
        raw_end: Number of bytes of contents up to the end of this block, before compression.
    """

    data: bytes
    size: int
    raw_end: int


class _Mark(NamedTuple):
    start: int
    end: int
    size: int
    raw_end: int


class Stream:
    """Blocks of many contents, compressed by several threads and written to a temporary file.

    Any number of hosts can read it, from the first block on, while it grows. If one of them waits for the next block,
    the network is faster than the compression: the blocks that are read in the meantime are sent as they are.

    Args:
        contents: The contents, in that order.
        offset: Number of bytes at the beginning that are left out.
        is_local: Whether the hosts are on this computer, so that no network is slower than the compression.
    """

    def __init__(self, contents: Sequence[Content], offset: int = 0, *, is_local: bool = False) -> None:
        self._offset = offset
        self._is_local = is_local
        self._contents = contents
        self._marks: list[_Mark] = []
        self._grown = threading.Condition()
        self._complete = False
        self._error: FleetError | None = None
        self._closed = False
        self._readers = 0  # that wait for the next piece
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._thread = threading.Thread(target=self._build, name="compress", daemon=True)
        self._thread.start()

    @property
    def is_awaited(self) -> bool:
        """Return whether a host waits for the next piece."""
        return self._readers > 0

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the stream from its beginning, each when it is available.

        Raises:
            UsageError: a file has changed since it was scanned.
            NotReadyError: this computer has not enough disk space for the compressed contents.
        """
        number = 0
        while (mark := self._mark(number)) is not None:
            data = os.pread(self._file.fileno(), mark.end - mark.start, mark.start)
            yield Piece(data, mark.size, mark.raw_end)
            number += 1

    def _mark(self, number: int) -> _Mark | None:
        """Return the position of piece `number` when it is available; None after the last piece."""
        with self._grown:
            self._readers += 1
            try:
                if not self._grown.wait_for(lambda: len(self._marks) > number or self._complete, _WAIT_S):
                    raise NotReadyError(f"reading the files to send made no progress for {_WAIT_S:g} s")
            finally:
                self._readers -= 1
            if len(self._marks) > number:
                return self._marks[number]
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Free the disk space of the stream."""
        self._closed = True
        self._thread.join(_CLOSE_S)
        self._file.close()

    def _build(self) -> None:
        error: FleetError | None = None
        try:
            self._compress()
        except FleetError as raised:
            error = raised
        except OSError as raised:
            error = NotReadyError(
                f"cannot keep the compressed files in {tempfile.gettempdir()}",
                cause=raised.strerror or str(raised),
                hint="free space there, or set TMPDIR to another directory",
            )
        with self._grown:
            self._error = error
            self._complete = True
            self._grown.notify_all()

    def _compress(self) -> None:
        threads = min(_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "compress-block") as pool:  # zlib does not hold the interpreter's lock
            waiting: deque[tuple[int, Future[tuple[bytes, int]]]] = deque()
            for number, block in enumerate(join_blocks(_skip(_read(self._contents), self._offset))):
                is_fast = number >= _COMPRESSED_FIRST and (self._is_local or self.is_awaited)  # the network
                waiting.append((len(block), _as_it_is(block) if is_fast else pool.submit(pack_block, block)))
                if len(waiting) > 2 * threads:
                    self._append(*waiting.popleft())
                if self._closed:
                    return
            for item in waiting:
                self._append(*item)

    def _append(self, raw_size: int, packed: Future[tuple[bytes, int]]) -> None:
        data, size = packed.result()
        self._file.write(data)
        self._file.flush()
        begin, before = (self._marks[-1].end, self._marks[-1].raw_end) if self._marks else (0, 0)
        with self._grown:
            self._marks.append(_Mark(begin, begin + len(data), size, before + raw_size))
            self._grown.notify_all()


def _as_it_is(block: bytes) -> Future[tuple[bytes, int]]:
    """Return the same as `pack_block` for a block that cannot be compressed."""
    future: Future[tuple[bytes, int]] = Future()
    future.set_result((block, 0))
    return future


def _read(contents: Sequence[Content]) -> Iterator[bytes]:
    for content in contents:
        yield from _blocks(content)


def _skip(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[count:]
        count = max(0, count - len(piece))


def _blocks(content: Content) -> Iterator[bytes]:
    """Yield the content of a file as it was scanned.

    Bytes that were appended later, as to a log, are left out. The bytes are not hashed again while the stamp of the
    file shows that it is unchanged: the hosts verify their hash.

    Raises:
        UsageError: the file has changed since it was scanned.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open(content))
        is_same = _has_stamp(file, content)
        digest = hashlib.sha256()
        for block in _read_start(file, content):
            if not is_same:
                digest.update(block)
            yield block
        if is_same and not _has_stamp(file, content):
            file.seek(0)
            for block in _read_start(file, content):
                digest.update(block)
            is_same = False
        if not is_same and digest.hexdigest() != content.sha256:
            raise _changed(content.path)


def _open(content: Content) -> BinaryIO:
    try:
        return content.path.open("rb", buffering=0)
    except OSError as error:
        raise _changed(content.path) from error


def _has_stamp(file: BinaryIO, content: Content) -> bool:
    return content.stamp is not None and Stamp.of(os.fstat(file.fileno())) == content.stamp


def _read_start(file: BinaryIO, content: Content) -> Iterator[bytes]:
    """Yield as many bytes as the file had when it was scanned."""
    left = content.size
    while left:
        try:
            block = file.read(min(BLOCK_BYTES, left))
        except OSError as error:
            raise _changed(content.path) from error
        if not block:
            raise _changed(content.path)
        left -= len(block)
        yield block


def _changed(path: Path) -> UsageError:
    name = os.fsencode(os.path.relpath(path)).decode("utf-8", "replace")
    return UsageError(f"{name} changed while it was being sent", next_steps=[Again({})])
