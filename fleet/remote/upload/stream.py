"""Compress the contents that hosts request, once for all hosts, while they are being sent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.steps import Again

_BLOCK = 256 * 1024
_PIECE = 256 * 1024  # maximum size of a compressed piece
_WAIT_S = 60.0
_CLOSE_S = 5.0


class Content(NamedTuple):
    """A file's content as it was scanned."""

    path: Path
    sha256: str
    size: int  # bytes


class Piece(NamedTuple):
    """Consecutive bytes of the compressed stream.

    Attributes:
        data: The bytes.
        raw_end: Number of bytes of contents up to the end of this piece, before compression.
    """

    data: bytes
    raw_end: int


class _Mark(NamedTuple):
    start: int
    end: int
    raw_end: int


class Stream:
    """A zlib stream of many contents, written to a temporary file by a background thread.

    Any number of hosts can read it, from the first piece on, while it grows.

    Args:
        contents: The contents, in that order.
    """

    def __init__(self, contents: Sequence[Content]) -> None:
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
            yield Piece(os.pread(self._file.fileno(), mark.end - mark.start, mark.start), mark.raw_end)
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
        compressor = zlib.compressobj(level=1)
        raw_end = 0
        for content in self._contents:
            for block in _blocks(content):
                if self._closed:
                    return
                raw_end += len(block)
                self._append(compressor.compress(block), raw_end)
        self._append(compressor.flush(), raw_end)

    def _append(self, data: bytes, raw_end: int) -> None:
        for start in range(0, len(data), _PIECE):
            part = data[start : start + _PIECE]
            begin = self._marks[-1].end if self._marks else 0
            self._file.write(part)
            self._file.flush()
            with self._grown:
                self._marks.append(_Mark(begin, begin + len(part), raw_end))
                self._grown.notify_all()


def _blocks(content: Content) -> Iterator[bytes]:
    """Yield the content of a file as it was scanned.

    Bytes that were appended later, as to a log, are left out.

    Raises:
        UsageError: the file has changed since it was scanned.
    """
    digest = hashlib.sha256()
    left = content.size
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(content.path.open("rb", buffering=0))
        except OSError as error:
            raise _changed(content.path) from error
        while left:
            try:
                block = file.read(min(_BLOCK, left))
            except OSError as error:
                raise _changed(content.path) from error
            if not block:
                raise _changed(content.path)
            left -= len(block)
            digest.update(block)
            yield block
    if digest.hexdigest() != content.sha256:
        raise _changed(content.path)


def _changed(path: Path) -> UsageError:
    name = os.fsencode(path.name).decode("utf-8", "replace")
    return UsageError(f"{name} changed while it was being sent", next_steps=[Again({})])
