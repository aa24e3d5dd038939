"""Authenticated connections between the agents of a job, over the private network, restored after a short loss.

A link is the relation of two slots, whichever TCP connection carries it: it is down only if nothing was received for
the link timeout. Users of a link send all of their state again whenever it comes up.
"""

import os
import socket
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from train.agent.gang.scheduling import BEAT_FRACTION
from train.agent.host.loop import READ, WRITE, Loop
from train.agent.protocol.admission import Acceptor, max_unauthenticated
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.records import Member
from train.agent.protocol.session import (
    LONGEST_GREETING,
    LONGEST_LINE,
    NONCE_BYTES,
    ChiefGreeting,
    LinkError,
    Message,
    PeerGreeting,
    Session,
)

GREETING_DEADLINE_S = 5.0
_MOST_UNSENT = 16 << 20  # bytes that wait for an agent that does not read
_RETRY_S = (0.05, 1.0)
_BEAT: Message = {"beat": 1}
_AT_ONCE = 1 << 16
_EVERY_ATTEMPT = 0
_PROBE_PREFIX = "probe "


class JobCredentials(NamedTuple):
    """Data that the agents of a job share."""

    job: str
    secret: bytes
    link_timeout_s: float = 10.0
    attempt: int = _EVERY_ATTEMPT


class Line:
    """A connection that carries lines; data that cannot be sent at once is queued in memory.

    Args:
        loop: Event loop that serves it.
        connection: Non-blocking.
        on_line: Called with each line that comes.
        on_end: Called once, with a reason, when it breaks; not when we close it.
    """

    def __init__(
        self, loop: Loop, connection: socket.socket, on_line: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._on_line = on_line
        self._on_end = on_end
        self._outgoing = bytearray()
        self._buffer = LineBuffer(LONGEST_LINE)
        self.received_at = time.monotonic()
        self.open = True
        self.authenticated = False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(connection.fileno(), READ, self._serve)

    def send(self, data: bytes) -> None:
        """Send a line, at once if possible."""
        self._outgoing += data
        self._flush()
        if len(self._outgoing) > _MOST_UNSENT:
            self._break("its agent does not read")

    def close(self) -> None:
        """Close the connection."""
        if self.open:
            self.open = False
            self._loop.unwatch(self._connection.fileno())
            self._connection.close()

    def _break(self, reason: str) -> None:
        if self.open:
            self.close()
            self._on_end(reason)

    def _serve(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.open and events & READ:
            self._receive()

    def _flush(self) -> None:
        while self.open and self._outgoing:
            try:
                sent = self._connection.send(self._outgoing)
            except BlockingIOError:
                break
            except OSError as error:
                self._break(_describe_break(error))
                return
            del self._outgoing[:sent]
        if self.open:
            self._loop.watch(self._connection.fileno(), READ | (WRITE if self._outgoing else 0), self._serve)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(_describe_break(error))
            return
        if not data:
            self._break("its agent ended")
            return
        self._buffer.feed(data)
        try:
            self._process_lines()
        except (LinkError, LineTooLongError) as error:
            self._break(str(error))
        except Exception:
            if self.authenticated:
                raise
            # An unauthenticated peer must not end this process, whatever error its data causes.
            self._break("a greeting that cannot be read")

    def _process_lines(self) -> None:
        while self.open:
            line = self._buffer.line()
            if line is None:
                if not self.authenticated and self._buffer.size > LONGEST_GREETING:
                    raise LinkError("a greeting that is too long")
                return
            self.received_at = time.monotonic()
            self._on_line(line)


def _describe_break(error: OSError) -> str:
    return f"its connection broke ({error.strerror})"


def describe_silence(link_timeout_s: float) -> str:
    """Return the reason for an agent that was silent for too long."""
    return f"its agent was silent for {link_timeout_s:g} s"


class _IncomingConnection:
    """An incoming connection of another agent, and its authentication state."""

    def __init__(self, line: Line, greeting: ChiefGreeting) -> None:
        self.line = line
        self.greeting = greeting
        self.session: Optional[Session] = None
        self.since = time.monotonic()


class _OutgoingConnection:
    """A connection to another agent; retried until it is established, or tried once for a probe.

    Args:
        loop: Event loop that serves it.
        credentials: Authenticate the agents of the job.
        local_slot: Local slot, as in the greeting.
        other: The slot to connect to.
        on_up: Called when the other has proven itself.
        on_message: Called with its messages.
        on_end: Called with a reason when an established connection ends, and after each failed try.
    """

    def __init__(
        self,
        loop: Loop,
        credentials: JobCredentials,
        local_slot: str,
        other: Member,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.slot = other.slot
        self._loop = loop
        self._credentials = credentials
        self._local_slot = local_slot
        self._other = other
        self._on_up = on_up
        self._on_message = on_message
        self._on_end = on_end
        self._socket: Optional[socket.socket] = None
        self._greeting: Optional[PeerGreeting] = None
        self._session: Optional[Session] = None
        self._closed = False
        self._timer = f"call {local_slot} {other.slot}"
        self.line: Optional[Line] = None

    @property
    def is_established(self) -> bool:
        """Return True if the other agent has authenticated."""
        return self._session is not None

    def connect(self) -> None:
        """Try once; the callbacks report the result."""
        self._loop.after(self._timer, GREETING_DEADLINE_S, lambda: self._failed("no answer"))
        try:
            address_info = socket.getaddrinfo(self._other.address, self._other.link_port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(address_info[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(address_info[4])
        except BlockingIOError:
            pass
        except OSError as error:
            self._failed(error.strerror or str(error))
            return
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), WRITE, lambda _: self._connected())

    def send(self, message: Message) -> None:
        """Send a message; it is dropped if there is no connection."""
        if self._session is not None and self.line is not None:
            self.line.send(self._session.seal(message))

    def close(self) -> None:
        """Close the connection without calling `on_end`."""
        self._closed = True
        self._session = None
        self._close_line()

    def _close_line(self) -> None:
        self._loop.cancel(self._timer)
        if self.line is not None:
            self.line.close()
        self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _failed(self, reason: str) -> None:
        self._close_line()
        self._session = None
        if not self._closed:
            self._on_end(reason)

    def _connected(self) -> None:
        connection = self._socket
        if connection is None:
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(os.strerror(code))
            return
        self._loop.unwatch(connection.fileno())
        self._socket = None
        credentials = self._credentials
        self._greeting = PeerGreeting(
            credentials.secret, credentials.job, _EVERY_ATTEMPT, self._local_slot, os.urandom(NONCE_BYTES)
        )
        self.line = Line(self._loop, connection, self._process_line, self._failed)
        self.line.send(self._greeting.first())

    def _process_line(self, data: bytes) -> None:
        if self._session is not None:
            message = self._session.open(data)
            if message != _BEAT:
                self._on_message(message)
        elif self._greeting is not None and self.line is not None:
            answer, self._session = self._greeting.take(data)
            self.line.authenticated = True
            self._loop.cancel(self._timer)
            self.line.send(answer)
            self._on_up()


class ConnectionEvents(NamedTuple):
    """Callbacks of the connections."""

    up: Callable[[str], None]  # with a slot, whenever a connection to it is established, also again
    down: Callable[[str, str], None]  # with a slot and a reason: nothing was received for the link timeout
    message: Callable[[str, Message], None]  # with a slot and its message
    idle: Callable[[], None]  # the last connection ended


class PeerConnections:
    """Connections of one agent: incoming ones, and the one to its leader.

    Args:
        loop: Event loop that serves it.
        listener: Where the others connect.
        credentials: Authenticate the agents of the job.
        local_slot: Local slot.
        others: The other slots.
        events: What to call when something happens.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        credentials: JobCredentials,
        local_slot: str,
        others: Mapping[str, Member],
        *,
        events: ConnectionEvents,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._acceptor = Acceptor(listener)
        self._max_unauthenticated = max_unauthenticated(len(others))
        self._credentials = credentials
        self._local_slot = local_slot
        self._others = dict(others)
        self._on_up, self._on_down, self._on_message, self._on_idle = events
        self._unauthenticated: List[_IncomingConnection] = []
        self._incoming: Dict[str, _IncomingConnection] = {}
        self._outgoing_connection: Optional[_OutgoingConnection] = None
        self._pause_s = _RETRY_S[0]
        self._probes: Dict[str, _OutgoingConnection] = {}
        self._closed = False
        loop.watch(listener.fileno(), READ, lambda _: self._accept())
        self._send_heartbeats()

    @property
    def connected(self) -> bool:
        """Return True if any other agent is connected."""
        return bool(self._incoming) or (
            self._outgoing_connection is not None and self._outgoing_connection.is_established
        )

    def update_addresses(self, members: Sequence[Member]) -> None:
        """Update the addresses of the slots; another host may have replaced a lost one."""
        for member in members:
            if member.slot in self._others:
                self._others[member.slot] = member

    def send(self, slot: str, message: Message) -> None:
        """Send a message to a slot; it is dropped if the slot is not connected."""
        if (
            self._outgoing_connection is not None
            and self._outgoing_connection.slot == slot
            and self._outgoing_connection.is_established
        ):
            self._outgoing_connection.send(message)
            return
        incoming = self._incoming.get(slot)
        if incoming is not None and incoming.session is not None:
            incoming.line.send(incoming.session.seal(message))

    def dial(self, slot: str) -> None:
        """Connect to a slot and keep trying; the previous connection of this agent is closed."""
        previous, self._outgoing_connection = self._outgoing_connection, None
        if previous is not None:
            previous.close()
            self._loop.cancel("dial")
            if previous.slot != slot and previous.slot not in self._incoming:
                self._loop.cancel(f"away {previous.slot}")
                self._loop.after(f"part {previous.slot}", 0.0, lambda: self._on_down(previous.slot, ""))
        self._pause_s = _RETRY_S[0]
        self._outgoing_connection = _OutgoingConnection(
            self._loop,
            self._credentials,
            self._local_slot,
            self._others[slot],
            on_up=lambda: self._established(slot),
            on_message=lambda message: self._on_message(slot, message),
            on_end=lambda reason: self._outgoing_ended(slot, reason),
        )
        self._outgoing_connection.connect()

    def send_once(self, slot: str, message: Message) -> None:
        """Send one message to a slot that is not connected, if it can be reached."""
        previous = self._probes.pop(slot, None)
        if previous is not None:
            previous.close()

        def send() -> None:
            outgoing.send(message)
            self._loop.after(f"probe {slot}", GREETING_DEADLINE_S, outgoing.close)

        outgoing = _OutgoingConnection(
            self._loop,
            self._credentials,
            _PROBE_PREFIX + self._local_slot,
            self._others[slot],
            on_up=send,
            on_message=lambda _: None,
            on_end=lambda _: None,
        )
        self._probes[slot] = outgoing
        outgoing.connect()

    def close(self) -> None:
        """Close all connections without calling the callbacks."""
        self._closed = True
        self._loop.cancel("links")
        self._loop.cancel("dial")
        for slot in self._others:
            for name in ("away", "probe", "part"):
                self._loop.cancel(f"{name} {slot}")
        for outgoing in [self._outgoing_connection, *self._probes.values()]:
            if outgoing is not None:
                outgoing.close()
        for incoming in [*self._unauthenticated, *self._incoming.values()]:
            incoming.line.close()
        self._unauthenticated.clear()
        self._incoming.clear()
        self._loop.unwatch(self._listener.fileno())
        self._acceptor.close()

    # --- our call -----------------------------------------------------------------------------------------------

    def _established(self, slot: str) -> None:
        self._pause_s = _RETRY_S[0]
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _outgoing_ended(self, slot: str, reason: str) -> None:
        outgoing = self._outgoing_connection
        if outgoing is None or outgoing.slot != slot or self._closed:
            return
        if outgoing.line is not None and outgoing.line.authenticated:
            outgoing.line.authenticated = False
            self._await_reconnection(slot, reason, outgoing.line.received_at)
        self._loop.after("dial", self._pause_s, outgoing.connect)
        self._pause_s = min(self._pause_s * 2, _RETRY_S[1])

    def _await_reconnection(self, slot: str, reason: str, received_at: float) -> None:
        """Wait for the rest of the link timeout before the slot counts as lost."""
        left_s = received_at + self._credentials.link_timeout_s - time.monotonic()
        self._loop.after(f"away {slot}", max(0.0, left_s), lambda: self._report_lost(slot, reason))

    def _report_lost(self, slot: str, reason: str) -> None:
        outgoing = self._outgoing_connection
        if slot in self._incoming or (outgoing is not None and outgoing.slot == slot and outgoing.is_established):
            return
        self._on_down(slot, reason)

    # --- calls of the others -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        connection, _ = accepted
        greeting = ChiefGreeting(
            self._credentials.secret, self._credentials.job, _EVERY_ATTEMPT, os.urandom(NONCE_BYTES)
        )
        line = Line(
            self._loop,
            connection,
            lambda data: self._process_line(incoming, data),
            lambda why: self._incoming_ended(incoming, why),
        )
        incoming = _IncomingConnection(line, greeting)
        self._unauthenticated.append(incoming)
        if len(self._unauthenticated) > self._max_unauthenticated:
            self._unauthenticated.pop(0).line.close()

    def _process_line(self, incoming: _IncomingConnection, data: bytes) -> None:
        name = incoming.greeting.slot
        if incoming.session is not None:
            message = incoming.session.open(data)
            if message != _BEAT:
                self._on_message(name[len(_PROBE_PREFIX) :] if name.startswith(_PROBE_PREFIX) else name, message)
            return
        answer, session = incoming.greeting.take(data)
        if session is None:
            incoming.line.send(answer)
            return
        self._accept_slot(incoming, session)

    def _accept_slot(self, incoming: _IncomingConnection, session: Session) -> None:
        name = incoming.greeting.slot
        is_probe = name.startswith(_PROBE_PREFIX)
        slot = name[len(_PROBE_PREFIX) :] if is_probe else name
        if slot not in self._others:
            raise LinkError(f"{slot} is not expected")
        incoming.session = session
        incoming.line.authenticated = True
        if is_probe:  # stays among the strangers, who are sent away after a while
            return
        self._unauthenticated.remove(incoming)
        previous = self._incoming.pop(slot, None)
        if previous is not None:
            previous.line.close()
        self._incoming[slot] = incoming
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _incoming_ended(self, incoming: _IncomingConnection, reason: str) -> None:
        if incoming in self._unauthenticated:
            self._unauthenticated.remove(incoming)
            return
        slot = incoming.greeting.slot
        if self._incoming.get(slot) is incoming:
            del self._incoming[slot]
            self._await_reconnection(slot, reason, incoming.line.received_at)
            if not self.connected:
                self._on_idle()

    # --- beats ----------------------------------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        now = time.monotonic()
        for incoming in [
            candidate for candidate in self._unauthenticated if now - candidate.since > GREETING_DEADLINE_S
        ]:
            self._unauthenticated.remove(incoming)
            incoming.line.close()
        # So early that even what is noticed at the next beat is noticed in time.
        longest_s = (1.0 - BEAT_FRACTION) * self._credentials.link_timeout_s
        for slot, incoming in list(self._incoming.items()):
            if now - incoming.line.received_at > longest_s:
                incoming.line.close()
                del self._incoming[slot]
                self._report_lost(slot, describe_silence(self._credentials.link_timeout_s))
            elif incoming.session is not None:
                incoming.line.send(incoming.session.seal(_BEAT))
        self._check_outgoing(now, longest_s)
        self._loop.after("links", BEAT_FRACTION * self._credentials.link_timeout_s, self._send_heartbeats)

    def _check_outgoing(self, now: float, longest_s: float) -> None:
        outgoing = self._outgoing_connection
        if outgoing is None or outgoing.line is None or not outgoing.is_established:
            return
        if now - outgoing.line.received_at <= longest_s:
            outgoing.send(_BEAT)
            return
        slot = outgoing.slot
        outgoing.line.authenticated = False
        outgoing.close()
        self._outgoing_connection = None
        self.dial(slot)
        self._report_lost(slot, describe_silence(self._credentials.link_timeout_s))
