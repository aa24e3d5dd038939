"""Connections that an event loop serves: lines, and sealed messages between two ends that have authenticated."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import struct
import time
from typing import Callable, Dict, Optional, Tuple

from train.agent.host.loop import READ, WRITE, Loop
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.session import (
    LONGEST_GREETING,
    LONGEST_LINE,
    Greeting,
    LinkError,
    Message,
    Session,
    encode_message,
)

GREETING_DEADLINE_S = 5.0
_MOST_UNSENT = 16 << 20  # bytes that wait for an end that does not read
_AT_ONCE = 1 << 16
_FAILED_S = 1.0  # to read what had arrived before an attempt to send failed
_FULL_S = 0.05
_MOST_STRANGERS, _LEAST_STRANGERS = 64, 8
_DIVISOR = 8  # at most one of this many descriptors of the process belongs to a connection that has not authenticated


def start_connection(address: str, port: int) -> socket.socket:
    """Return a non-blocking TCP socket that is connecting, or has failed, which its stream reports.

    Raises:
        OSError: the address cannot be resolved, or the connection fails at once.
    """
    # For text, the codec of names that are not ASCII is imported, which takes as long as a connection.
    name = address.encode("ascii") if address.isascii() else address
    family, _, _, _, target = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        with contextlib.suppress(BlockingIOError):
            connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection


class LineStream:
    """A connection that carries lines; data that cannot be sent at once is queued in memory.

    Sending never calls back: if it fails, what had arrived before is read first.

    Args:
        loop: Event loop that serves it.
        connection: Non-blocking; may still be connecting.
        on_line: Called with each line that arrives; a LinkError that it raises ends the connection.
        on_end: Called once, with the reason, when it breaks; not when this end closes it.
        limit: Bytes that a line may have.
        first: Bytes to send when it is connected.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        on_line: Callable[[bytes], None],
        on_end: Callable[[Exception], None],
        limit: int = LONGEST_LINE,
        first: bytes = b"",
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._on_line = on_line
        self._outgoing = bytearray(first)
        self._timer = f"deadline of connection {connection.fileno()}"
        self.buffer = LineBuffer(limit)
        self._failure: Optional[Exception] = None  # of an attempt to send
        self.on_end = on_end
        self.received_at = time.monotonic()
        self.is_open = True
        self.is_connected = False  # something was sent
        self._watch()

    def send_data(self, data: bytes) -> None:
        """Send bytes, at once if possible; they are dropped if the connection has ended."""
        if self.is_open and self._failure is None:
            self._outgoing += data
            self._flush()
        if len(self._outgoing) > _MOST_UNSENT:
            self._fail(ConnectionError("its agent does not read"), 0.0)

    def drain(self, timeout_s: float) -> None:
        """Block until all queued bytes are sent; the connection breaks if that takes longer than `timeout_s`."""
        if self._outgoing:
            try:
                self._connection.settimeout(timeout_s)
                self._connection.sendall(self._outgoing)
                self._outgoing.clear()
            except OSError as error:
                self._fail(error, 0.0)
            self._connection.settimeout(0.0)
            self._watch()

    def end_after(self, seconds: float) -> None:
        """Break the connection after this time; replaces an earlier deadline."""
        self._loop.after(self._timer, seconds, lambda: self._break(TimeoutError("no answer")))

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        if self.is_open:
            self._leave_loop()
            self._connection.close()

    def _leave_loop(self) -> None:
        self.is_open = False
        self._outgoing.clear()
        self._loop.cancel(self._timer)
        self._loop.unwatch(self._connection.fileno())

    def _break(self, error: Exception) -> None:
        if self.is_open:
            self.close()
            self.on_end(self._failure or error)

    def _fail(self, error: Exception, grace_s: float = _FAILED_S) -> None:
        self._failure = error
        self._outgoing.clear()
        self.end_after(grace_s)
        self._watch()

    def _serve(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.is_open and events & READ:
            self._receive()

    def _flush(self) -> None:
        while self.is_open and self._outgoing:
            try:
                sent = self._connection.send(self._outgoing)
            except BlockingIOError:
                break
            except OSError as error:
                self._fail(error)
                return
            self.is_connected = True
            del self._outgoing[:sent]
        self._watch()

    def _watch(self) -> None:
        if self.is_open:
            self._loop.watch(self._connection.fileno(), READ | (WRITE if self._outgoing else 0), self._serve)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(error)
            return
        if not data:
            self._break(ConnectionError("its agent ended"))
            return
        self.buffer.feed(data)
        try:
            while self.is_open and (line := self.buffer.line()) is not None:
                self.received_at = time.monotonic()
                self._on_line(line)
        except LinkError as error:
            self._break(error)
        except LineTooLongError as error:
            self._break(LinkError(str(error)))


class MessageStream(LineStream):
    """A connection that carries sealed messages once both ends have authenticated.

    Args:
        loop: Event loop that serves it.
        connection: Non-blocking; may still be connecting.
        greeting: The side of this end in the authentication.
        on_up: Called when the other end has authenticated; may raise LinkError to refuse it.
        on_message: Called with each message.
        on_end: Called once, with the reason, when it breaks; not when this end closes it.
        deadline_s: Longest time of the authentication.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        greeting: Greeting,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Message], None],
        on_end: Callable[[Exception], None],
        deadline_s: float = GREETING_DEADLINE_S,
    ) -> None:
        super().__init__(loop, connection, self._process, on_end, LONGEST_GREETING, greeting.first())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.on_message = on_message
        self._on_up = on_up
        self._greeting = greeting
        self._session: Optional[Session] = None
        self.end_after(deadline_s)

    @property
    def is_authenticated(self) -> bool:
        """Return True if the other end has authenticated."""
        return self._session is not None

    @property
    def peer(self) -> str:
        """Return the name of the other end, which is verified once it has authenticated; empty: not given yet."""
        return self._greeting.slot

    @property
    def local_address(self) -> str:
        """Return the address of this end."""
        return str(self._connection.getsockname()[0])

    def send(self, message: Message) -> None:
        """Send a message; it is dropped if the connection has ended or is not authenticated yet."""
        self.send_text(encode_message(message))

    def send_text(self, text: bytes) -> None:
        """Send an encoded message; see `send`."""
        if self._session is not None:
            self.send_data(self._session.seal(text))

    def detach(self) -> Tuple[socket.socket, Optional[Session], LineBuffer]:
        """Take the connection out of the event loop; return it, its session, and what was received on it."""
        self._leave_loop()
        return self._connection, self._session, self.buffer

    def _process(self, line: bytes) -> None:
        if self._session is not None:
            self.on_message(self._session.open(line))
            return
        try:
            answer, session = self._greeting.take(line)
        except LinkError:
            raise
        except Exception as error:  # whatever an unauthenticated peer sends must not end this process
            raise LinkError("a greeting that cannot be read") from error
        self.send_data(answer)
        if session is not None and self.is_open:
            self._session = session
            self._loop.cancel(self._timer)
            self.buffer.limit = LONGEST_LINE
            self._on_up()


class StreamListener:
    """Accept connections, and hold those that have not authenticated: a limited number, for a limited time.

    One more than that number closes the oldest.

    Args:
        loop: Event loop that serves it.
        listener: Non-blocking; stays open when this is closed.
        greeting: Returns this end's side of the next authentication.
        expected: Number of true participants.
        on_up: Called with an authenticated connection; takes it with `release`.
        on_refused: Called with the address of a connection that ended before that, and the reason.
        deadline_s: Longest time of the authentication.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        greeting: Callable[[], Greeting],
        expected: int,
        on_up: Callable[[MessageStream], None],
        *,
        on_refused: Optional[Callable[[str, Exception], None]] = None,
        deadline_s: float = GREETING_DEADLINE_S,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._greeting = greeting
        self._on_up = on_up
        self._on_refused = on_refused
        self._deadline_s = deadline_s
        self._max_unauthenticated = _max_unauthenticated(expected)
        self._unauthenticated: Dict[MessageStream, None] = {}  # the oldest first
        self._is_open = True
        loop.watch(listener.fileno(), READ, lambda _: self._accept())

    def release(self, stream: MessageStream) -> None:
        """Give a connection to the caller, who sets its `on_message` and `on_end`."""
        self._unauthenticated.pop(stream, None)

    def close(self) -> None:
        """Stop listening, and close the connections that were not released; repeated calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._listener.fileno())
            for stream in self._unauthenticated:
                stream.close()
            self._unauthenticated.clear()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_FULL_S)  # the listener stays readable until a file descriptor is free
            return
        connection.setblocking(False)

        def ended(error: Exception) -> None:
            self.release(stream)
            if self._on_refused is not None:
                self._on_refused(str(address[0]), error)

        stream = MessageStream(
            self._loop,
            connection,
            self._greeting(),
            on_up=lambda: self._on_up(stream),
            on_message=lambda _: None,
            on_end=ended,
            deadline_s=self._deadline_s,
        )
        self._unauthenticated[stream] = None
        if len(self._unauthenticated) > self._max_unauthenticated:
            oldest = next(iter(self._unauthenticated))
            self.release(oldest)
            oldest.close()


def _max_unauthenticated(expected: int) -> int:
    """Return the number of connections that one listener holds before they authenticate.

    Args:
        expected: Number of true participants, all of which may connect at the same moment.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft if soft != resource.RLIM_INFINITY else 1 << 20
    return max(_LEAST_STRANGERS, min(expected + _MOST_STRANGERS, (limit - expected) // _DIVISOR))


def reset_on_close(connection: socket.socket) -> None:
    """Let a connection, or those of a listener, be reset when closed, which leaves no TIME_WAIT state on its port."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
