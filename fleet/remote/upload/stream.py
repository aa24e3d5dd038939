"""Compress the contents that hosts request, once for all hosts, while they are being sent."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.steps import Again
from train.agent.files.blocks import BLOCK_BYTES, join_blocks, pack_block

_WAIT_S = 60.0
_CLOSE_S = 5.0


class Content(NamedTuple):
    """A file's content as it was scanned.

    Attributes:
        path: The file.
        sha256: Hash of the content.
        size: Size in bytes.
    """

    path: Path
    sha256: str
    size: int


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
    """Blocks of many contents, compressed by a thread and written to a temporary file.

    Any number of hosts can read it, from the first block on, while it grows.

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
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._thread = threading.Thread(target=self._build, name="compress", daemon=True)
        self._thread.start()

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
            if not self._grown.wait_for(lambda: len(self._marks) > number or self._complete, _WAIT_S):
                raise NotReadyError(f"reading the files to send made no progress for {_WAIT_S:g} s")
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
            for block in join_blocks(_skip(_read(self._contents), self._offset)):
                if self._closed:
                    return
                self._append(len(block), *((block, 0) if self._is_local else pack_block(block)))
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

    def _append(self, raw_size: int, data: bytes, size: int) -> None:
        self._file.write(data)
        self._file.flush()
        begin, before = (self._marks[-1].end, self._marks[-1].raw_end) if self._marks else (0, 0)
        with self._grown:
            self._marks.append(_Mark(begin, begin + len(data), size, before + raw_size))
            self._grown.notify_all()


def _skip(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[count:]
        count = max(0, count - len(piece))


def _read(contents: Sequence[Content]) -> Iterator[bytes]:
    """Yield the contents of files as they were scanned. Bytes that were appended later, as to a log, are left out.

    Raises:
        UsageError: a file has changed since it was scanned.
    """
    for path, sha256, size in contents:
        digest, left = hashlib.sha256(), size
        try:
            with path.open("rb", buffering=0) as file:
                while left and (block := file.read(min(BLOCK_BYTES, left))):
                    left -= len(block)
                    digest.update(block)
                    yield block
        except OSError as error:
            raise _changed(path) from error
        if digest.hexdigest() != sha256:
            raise _changed(path)


def _changed(path: Path) -> UsageError:
    name = os.fsencode(os.path.relpath(path)).decode("utf-8", "replace")
    return UsageError(f"{name} changed while it was being sent", next_steps=[Again({})])
