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
from train.agent.protocol.admission import Acceptor, most_strangers
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
_KNOCK = "knock "


class Bond(NamedTuple):
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
        self.heard_at = time.monotonic()
        self.open = True
        self.trusted = False
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
                self._break(_clause(error))
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
            self._break(_clause(error))
            return
        if not data:
            self._break("its agent ended")
            return
        self._buffer.feed(data)
        try:
            self._hand_on()
        except (LinkError, LineTooLongError) as error:
            self._break(str(error))
        except Exception:
            if self.trusted:
                raise
            # Nobody who has proven nothing may end this process, whatever was overlooked in reading what they sent.
            self._break("a greeting that cannot be read")

    def _hand_on(self) -> None:
        while self.open:
            line = self._buffer.line()
            if line is None:
                if not self.trusted and self._buffer.size > LONGEST_GREETING:
                    raise LinkError("a greeting that is too long")
                return
            self.heard_at = time.monotonic()
            self._on_line(line)


def _clause(error: OSError) -> str:
    return f"its connection broke ({error.strerror})"


def silence(link_timeout_s: float) -> str:
    """Return the reason for an agent that was silent for too long."""
    return f"its agent was silent for {link_timeout_s:g} s"


class _Guest:
    """An incoming connection of another agent, and its authentication state."""

    def __init__(self, line: Line, greeting: ChiefGreeting) -> None:
        self.line = line
        self.greeting = greeting
        self.session: Optional[Session] = None
        self.since = time.monotonic()


class _Call:
    """A connection to another agent; retried until it is established, or tried once for a probe.

    Args:
        loop: Event loop that serves it.
        bond: What we have in common.
        me: Local slot, as in the greeting.
        other: Whom to call.
        on_up: Called when the other has proven itself.
        on_message: Called with its messages.
        on_end: Called with a reason when a connection that stood ended, and with each try that failed.
    """

    def __init__(
        self,
        loop: Loop,
        bond: Bond,
        me: str,
        other: Member,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.slot = other.slot
        self._loop = loop
        self._bond = bond
        self._me = me
        self._other = other
        self._on_up = on_up
        self._on_message = on_message
        self._on_end = on_end
        self._socket: Optional[socket.socket] = None
        self._greeting: Optional[PeerGreeting] = None
        self._session: Optional[Session] = None
        self._closed = False
        self._timer = f"call {me} {other.slot}"
        self.line: Optional[Line] = None

    @property
    def stands(self) -> bool:
        """Return True if the other agent has authenticated."""
        return self._session is not None

    def connect(self) -> None:
        """Try once; the callbacks report the result."""
        self._loop.after(self._timer, GREETING_DEADLINE_S, lambda: self._failed("no answer"))
        try:
            found = socket.getaddrinfo(self._other.address, self._other.link_port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(found[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(found[4])
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
        self._hang_up()

    def _hang_up(self) -> None:
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
        self._hang_up()
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
        bond = self._bond
        self._greeting = PeerGreeting(bond.secret, bond.job, _EVERY_ATTEMPT, self._me, os.urandom(NONCE_BYTES))
        self.line = Line(self._loop, connection, self._take, self._failed)
        self.line.send(self._greeting.first())

    def _take(self, data: bytes) -> None:
        if self._session is not None:
            message = self._session.open(data)
            if message != _BEAT:
                self._on_message(message)
        elif self._greeting is not None and self.line is not None:
            answer, self._session = self._greeting.take(data)
            self.line.trusted = True
            self._loop.cancel(self._timer)
            self.line.send(answer)
            self._on_up()


class Events(NamedTuple):
    """Callbacks of the connections."""

    up: Callable[[str], None]  # with a slot, whenever a connection with it stands, also where it comes back
    down: Callable[[str, str], None]  # with a slot and a reason: nothing was heard of it for the link timeout
    message: Callable[[str, Message], None]  # with a slot and what it said
    idle: Callable[[], None]  # a connection ended, and no other stands


class Links:
    """Connections of one agent: incoming ones, and the one to its leader.

    Args:
        loop: Event loop that serves it.
        listener: Where the others connect.
        bond: What we have in common.
        me: Local slot.
        others: The other slots.
        events: What to call when something happens.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        bond: Bond,
        me: str,
        others: Mapping[str, Member],
        *,
        events: Events,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._acceptor = Acceptor(listener)
        self._most_strangers = most_strangers(len(others))
        self._bond = bond
        self._me = me
        self._others = dict(others)
        self._on_up, self._on_down, self._on_message, self._on_idle = events
        self._strangers: List[_Guest] = []
        self._guests: Dict[str, _Guest] = {}
        self._call: Optional[_Call] = None
        self._pause = _RETRY_S[0]
        self._knocks: Dict[str, _Call] = {}
        self._closed = False
        loop.watch(listener.fileno(), READ, lambda _: self._accept())
        self._beat()

    @property
    def connected(self) -> bool:
        """Return True if any other agent is connected."""
        return bool(self._guests) or (self._call is not None and self._call.stands)

    def learn(self, members: Sequence[Member]) -> None:
        """Update the addresses of the slots; another host may have replaced a lost one."""
        for member in members:
            if member.slot in self._others:
                self._others[member.slot] = member

    def send(self, slot: str, message: Message) -> None:
        """Send a message to a slot; it is dropped if the slot is not connected."""
        if self._call is not None and self._call.slot == slot and self._call.stands:
            self._call.send(message)
            return
        guest = self._guests.get(slot)
        if guest is not None and guest.session is not None:
            guest.line.send(guest.session.seal(message))

    def dial(self, slot: str) -> None:
        """Connect to a slot and keep trying; the previous connection of this agent is closed."""
        before, self._call = self._call, None
        if before is not None:
            before.close()
            self._loop.cancel("dial")
            if before.slot != slot and before.slot not in self._guests:
                self._loop.cancel(f"away {before.slot}")
                self._loop.after(f"part {before.slot}", 0.0, lambda: self._on_down(before.slot, ""))
        self._pause = _RETRY_S[0]
        self._call = _Call(
            self._loop,
            self._bond,
            self._me,
            self._others[slot],
            on_up=lambda: self._came(slot),
            on_message=lambda message: self._on_message(slot, message),
            on_end=lambda reason: self._call_ended(slot, reason),
        )
        self._call.connect()

    def knock(self, slot: str, message: Message) -> None:
        """Send one message to a slot that is not connected, if it can be reached."""
        before = self._knocks.pop(slot, None)
        if before is not None:
            before.close()

        def said() -> None:
            call.send(message)
            self._loop.after(f"knock {slot}", GREETING_DEADLINE_S, call.close)

        call = _Call(
            self._loop,
            self._bond,
            _KNOCK + self._me,
            self._others[slot],
            on_up=said,
            on_message=lambda _: None,
            on_end=lambda _: None,
        )
        self._knocks[slot] = call
        call.connect()

    def close(self) -> None:
        """Close all connections without calling the callbacks."""
        self._closed = True
        self._loop.cancel("links")
        self._loop.cancel("dial")
        for slot in self._others:
            for name in ("away", "knock", "part"):
                self._loop.cancel(f"{name} {slot}")
        for call in [self._call, *self._knocks.values()]:
            if call is not None:
                call.close()
        for guest in [*self._strangers, *self._guests.values()]:
            guest.line.close()
        self._strangers.clear()
        self._guests.clear()
        self._loop.unwatch(self._listener.fileno())
        self._acceptor.close()

    # --- our call -----------------------------------------------------------------------------------------------

    def _came(self, slot: str) -> None:
        self._pause = _RETRY_S[0]
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _call_ended(self, slot: str, reason: str) -> None:
        call = self._call
        if call is None or call.slot != slot or self._closed:
            return
        if call.line is not None and call.line.trusted:
            call.line.trusted = False
            self._away(slot, reason, call.line.heard_at)
        self._loop.after("dial", self._pause, call.connect)
        self._pause = min(self._pause * 2, _RETRY_S[1])

    def _away(self, slot: str, reason: str, heard_at: float) -> None:
        """Wait for the rest of the link timeout before the slot counts as lost."""
        left_s = heard_at + self._bond.link_timeout_s - time.monotonic()
        self._loop.after(f"away {slot}", max(0.0, left_s), lambda: self._gone(slot, reason))

    def _gone(self, slot: str, reason: str) -> None:
        call = self._call
        if slot in self._guests or (call is not None and call.slot == slot and call.stands):
            return
        self._on_down(slot, reason)

    # --- calls of the others -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        connection, _ = accepted
        greeting = ChiefGreeting(self._bond.secret, self._bond.job, _EVERY_ATTEMPT, os.urandom(NONCE_BYTES))
        line = Line(self._loop, connection, lambda data: self._take(guest, data), lambda why: self._ended(guest, why))
        guest = _Guest(line, greeting)
        self._strangers.append(guest)
        if len(self._strangers) > self._most_strangers:
            self._strangers.pop(0).line.close()

    def _take(self, guest: _Guest, data: bytes) -> None:
        name = guest.greeting.slot
        if guest.session is not None:
            message = guest.session.open(data)
            if message != _BEAT:
                self._on_message(name[len(_KNOCK) :] if name.startswith(_KNOCK) else name, message)
            return
        answer, session = guest.greeting.take(data)
        if session is None:
            guest.line.send(answer)
            return
        self._welcome(guest, session)

    def _welcome(self, guest: _Guest, session: Session) -> None:
        name = guest.greeting.slot
        knocks = name.startswith(_KNOCK)
        slot = name[len(_KNOCK) :] if knocks else name
        if slot not in self._others:
            raise LinkError(f"{slot} is not expected")
        guest.session = session
        guest.line.trusted = True
        if knocks:  # stays among the strangers, who are sent away after a while
            return
        self._strangers.remove(guest)
        before = self._guests.pop(slot, None)
        if before is not None:
            before.line.close()
        self._guests[slot] = guest
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _ended(self, guest: _Guest, reason: str) -> None:
        if guest in self._strangers:
            self._strangers.remove(guest)
            return
        slot = guest.greeting.slot
        if self._guests.get(slot) is guest:
            del self._guests[slot]
            self._away(slot, reason, guest.line.heard_at)
            if not self.connected:
                self._on_idle()

    # --- beats ----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = time.monotonic()
        for guest in [one for one in self._strangers if now - one.since > GREETING_DEADLINE_S]:
            self._strangers.remove(guest)
            guest.line.close()
        # So early that even what is noticed at the next beat is noticed in time.
        longest_s = (1.0 - BEAT_FRACTION) * self._bond.link_timeout_s
        for slot, guest in list(self._guests.items()):
            if now - guest.line.heard_at > longest_s:
                guest.line.close()
                del self._guests[slot]
                self._gone(slot, silence(self._bond.link_timeout_s))
            elif guest.session is not None:
                guest.line.send(guest.session.seal(_BEAT))
        self._beat_call(now, longest_s)
        self._loop.after("links", BEAT_FRACTION * self._bond.link_timeout_s, self._beat)

    def _beat_call(self, now: float, longest_s: float) -> None:
        call = self._call
        if call is None or call.line is None or not call.stands:
            return
        if now - call.line.heard_at <= longest_s:
            call.send(_BEAT)
            return
        slot = call.slot
        call.line.trusted = False
        call.close()
        self._call = None
        self.dial(slot)
        self._gone(slot, silence(self._bond.link_timeout_s))
