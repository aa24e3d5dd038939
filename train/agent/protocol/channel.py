"""Lines of JSON and raw payloads over two file descriptors."""

from __future__ import annotations

import os
import select
import time
from typing import Callable, Iterator, Optional

from train.agent.protocol.errors import ClientGoneError
from train.agent.protocol.records import Record, decode, encode

LONGEST_REQUEST = 256 << 20  # bytes; a bundle of a million paths stays below it
WRITE_DEADLINE_S = 300.0
_PIECE = 1 << 18


class LineTooLongError(ValueError):
    """A line is longer than the limit."""


class LineBuffer:
    """Split a stream of bytes into lines and payloads.

    Args:
        limit: Bytes that a line may have.
    """

    def __init__(self, limit: int) -> None:
        self._bytes = bytearray()
        self._searched = 0
        self.limit = limit

    @property
    def size(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._bytes += data

    def line(self) -> Optional[bytes]:
        """Return the next line without its newline, or None if it is incomplete.

        Raises:
            LineTooLongError: it is longer than the limit.
        """
        end = self._bytes.find(b"\n", self._searched)
        if max(end, len(self._bytes) if end < 0 else 0) > self.limit:
            raise LineTooLongError(f"a line of more than {self.limit} bytes")
        if end < 0:
            self._searched = len(self._bytes)
            return None
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 1]
        self._searched = 0
        return line

    def take(self, limit: int) -> bytes:
        """Return up to `limit` raw bytes of the buffer."""
        data = bytes(self._bytes[:limit])
        del self._bytes[:limit]
        self._searched = 0
        return data


class Channel:
    """The agent's end of a conversation.

    Args:
        reads: File descriptor on which requests come.
        writes: File descriptor on which answers go; made non-blocking.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._buffer = LineBuffer(LONGEST_REQUEST)
        self._owed = 0  # unread bytes of the current payload
        os.set_blocking(writes, False)

    def fileno(self) -> int:
        """Return the file descriptor to wait on for requests."""
        return self._reads

    def receive(self, deadline_s: float) -> Record:
        """Return the next request.

        Raises:
            ClientGoneError: the input ended, or nothing came for `deadline_s` seconds.
            MalformedRecordError: the line is not a record.
        """
        for _ in self.payload(self._owed, deadline_s):
            continue
        while True:
            line = self._buffer.line()
            if line is not None:
                return decode(line)
            self._fill(deadline_s)

    def received(self) -> Optional[Record]:
        """Return the next request if it has arrived; to be called when `fileno` is readable.

        Raises:
            ClientGoneError: the input ended.
            MalformedRecordError: the line is not a record.
        """
        self._fill(0)
        return self.buffered()

    def buffered(self) -> Optional[Record]:
        """Return the next request if it has been read already."""
        line = self._buffer.line()
        return decode(line) if line is not None else None

    def payload(self, size: int, deadline_s: float) -> Iterator[bytes]:
        """Yield the `size` raw bytes that follow a line, in pieces; `receive` skips unread ones.

        Raises:
            ClientGoneError: the input ended, or nothing came for `deadline_s` seconds.
        """
        self._owed = size
        while self._owed > 0:
            piece = self._buffer.take(min(self._owed, _PIECE))
            if piece:
                self._owed -= len(piece)
                yield piece
            else:
                self._fill(deadline_s)

    def await_request(self, deadline_s: float) -> None:
        """Wait until the next request begins, or the input ends.

        Raises:
            ClientGoneError: nothing came for `deadline_s` seconds.
        """
        if not self._buffer.size:
            self._wait(self._reads, select.POLLIN, deadline_s, "to send something")

    def send(self, record: Record, payload: bytes = b"") -> None:
        """Send `record`, and the bytes that its field ``payload`` announces.

        Raises:
            ClientGoneError: the client does not read for five minutes.
        """
        self.send_raw(encode(record) + payload)

    def send_raw(self, data: bytes) -> None:
        """Send encoded lines."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._writes, view) :]
            except BlockingIOError:
                self._wait(self._writes, select.POLLOUT, WRITE_DEADLINE_S, "to take an answer")
            except OSError as error:
                raise ClientGoneError(f"the client closed its end: {error.strerror}") from error

    def _fill(self, deadline_s: float) -> None:
        self._wait(self._reads, select.POLLIN, deadline_s, "to send something")
        try:
            data = os.read(self._reads, _PIECE)
        except BlockingIOError:  # both ends may be one socket, which then blocks for neither
            return
        except OSError as error:
            raise ClientGoneError(f"the client cannot be read: {error.strerror}") from error
        if not data:
            raise ClientGoneError("the client closed its end")
        self._buffer.feed(data)

    def _wait(self, fd: int, event: int, deadline_s: float, action: str) -> None:
        poll = select.poll()
        poll.register(fd, event)
        end = time.monotonic() + deadline_s
        while not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            if time.monotonic() >= end:
                raise ClientGoneError(f"waited {deadline_s:.0f} s for the client {action}")


class Periodic:
    """Call a function at most once per interval, however often this is called during long work.

    Args:
        interval_s: The interval; the first call comes after one.
        act: The function.
    """

    def __init__(self, interval_s: float, act: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._act = act
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Call the function if the last call is old enough."""
        if time.monotonic() - self._last >= self._interval_s:
            self._act()
            self._last = time.monotonic()
