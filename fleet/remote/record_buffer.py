"""Split the bytes that an agent sends into records and their payloads; pure."""

from __future__ import annotations

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
    """Received bytes that are not read yet."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0  # bytes without the end of the line
        self._record: Record | None = None  # whose payload is incomplete
        self._size = 0  # of this payload
        self._line_size = 0

    def __bool__(self) -> bool:
        """Return whether there are bytes that are not read."""
        return bool(self._data)

    @property
    def pending(self) -> int:
        """Return the number of bytes of an incomplete line, or of an incomplete payload."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def line(self, longest: int = LINE_MAX) -> bytes | None:
        """Return the next line without its newline; None if it is incomplete.

        Raises:
            NotARecordError: it is longer than `longest` bytes.
        """
        end = self._data.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._data)
            if self._searched > longest:
                raise NotARecordError(bytes(self._data[:80]))
            return None
        self._searched = 0
        return self._take(end, end + 1)

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
        if len(self._data) < self._size:
            return None
        record, self._record = self._record, None
        return record, self._take(self._size, self._size), self._line_size + self._size

    def _take(self, end: int, next_at: int) -> bytes:
        """Return the bytes up to `end`, and remove those up to `next_at`."""
        data = bytes(memoryview(self._data)[:end])
        del self._data[:next_at]
        return data
