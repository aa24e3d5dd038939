"""Split the bytes that an agent sends into records and their payloads; pure."""

from __future__ import annotations

from collections import deque

from train.agent.protocol.records import MalformedRecordError, Record, decode

LINE_MAX = 4 * 1024 * 1024
LONG_LINE_MAX = 64 * 1024 * 1024  # lists of a job's files and their hashes
PAYLOAD_MAX = 1024 * 1024  # agents send pieces of logs and files of 256 KiB, compressed or not


class NotARecordError(Exception):
    """A line is not a record of a valid size.

    Attributes:
        line: Its beginning.
    """

    def __init__(self, line: bytes) -> None:
        super().__init__(line)
        self.line = line


class RecordBuffer:
    """Received bytes that are not read yet; payloads are copied once.

    Attributes:
        pending: Number of bytes of an incomplete line, or of an incomplete payload.
    """

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._at = 0  # of the first byte of the first chunk that is not read
        self._parts: list[bytes] = []  # of an incomplete line or payload
        self.pending = 0
        self._record: Record | None = None  # whose payload is incomplete
        self._size = 0  # of this payload
        self._line_size = 0

    def __bool__(self) -> bool:
        """Return whether there are bytes that are not read."""
        return bool(self._chunks or self._parts)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._chunks.append(data)

    def line(self, longest: int = LINE_MAX) -> bytes | None:
        """Return the next line without its newline; None if it is incomplete.

        Raises:
            NotARecordError: it is longer than `longest` bytes.
        """
        while self._chunks:
            chunk = self._chunks[0]
            end = chunk.find(b"\n", self._at)
            if end >= 0:
                self._gather(end)
                self._skip_newline()
                return self._gathered()
            self._gather(len(chunk))
            if self.pending > longest:
                raise NotARecordError(self._gathered()[:80])
        return None

    def next(self, longest: int = LINE_MAX) -> tuple[Record, bytes, int] | None:
        """Return the next record, its payload, and the size of both in bytes; None if they are incomplete.

        Raises:
            NotARecordError: what was received is not a record, or too long.
        """
        if self._record is None:
            line = self.line(longest)
            if line is None:
                return None
            try:
                self._record = decode(line)
            except MalformedRecordError as error:
                raise NotARecordError(line[:80]) from error
            self._size, self._line_size = getattr(self._record, "payload", 0), len(line)
            if type(self._size) is not int or not 0 <= self._size <= PAYLOAD_MAX:
                raise NotARecordError(line[:80])
        while self.pending < self._size:
            if not self._chunks:
                return None
            self._gather(min(len(self._chunks[0]), self._at + self._size - self.pending))
        record, self._record = self._record, None
        return record, self._gathered(), self._line_size + self._size

    def _gather(self, end: int) -> None:
        """Add the bytes of the first chunk up to `end` to the incomplete line or payload."""
        chunk = self._chunks[0]
        if end > self._at:
            self._parts.append(chunk[self._at : end])
            self.pending += end - self._at
        self._advance(end)

    def _skip_newline(self) -> None:
        self._advance(self._at + 1)

    def _advance(self, at: int) -> None:
        self._at = at
        if at == len(self._chunks[0]):
            self._chunks.popleft()
            self._at = 0

    def _gathered(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.pending = 0
        return data
