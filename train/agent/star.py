"""Connections of the agents: all others to the chief's, over the private network."""

import os
import socket
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Set

from train.agent.link import (
    LONGEST_GREETING,
    LONGEST_LINE,
    NONCE_BYTES,
    ChiefGreeting,
    LinkError,
    Message,
    PeerGreeting,
    Session,
)
from train.agent.loop import READ, WRITE, Loop
from train.agent.records import Member
from train.agent.wire import LineBuffer, LineTooLongError

GREETING_DEADLINE_S = 5.0
_STRANGERS = 64  # connections that have proven nothing, at a time
_RETRY_S = (0.05, 1.0)
_BEATS_PER_TIMEOUT = 5
_BEAT: Message = {"beat": 1}
_AT_ONCE = 1 << 16


class Bond(NamedTuple):
    """What the agents of one attempt have in common."""

    job: str
    attempt: int
    secret: bytes
    link_timeout_s: float


class Line:
    """A connection that carries lines; what cannot be sent at once waits in memory.

    Args:
        loop: In which it is served.
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
        """Send a line, at once as far as possible."""
        self._outgoing += data
        self._flush()

    def close(self) -> None:
        """End the connection."""
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
    """What is said of an agent that was silent for too long."""
    return f"its agent was silent for {link_timeout_s:g} s"


class _Guest:
    """A connection to the chief, and what it has proven."""

    def __init__(self, line: Line, greeting: ChiefGreeting) -> None:
        self.line = line
        self.greeting = greeting
        self.session: Optional[Session] = None
        self.since = time.monotonic()


class ChiefEnd:
    """The chief's end of all links.

    Args:
        loop: In which it is served.
        listener: Where the others connect.
        bond: What they have in common with us.
        tasks: The others.
        on_join: Called with a task that has proven itself.
        on_message: Called with a task and its message.
        on_loss: Called with a task and a reason; not after `on_join` of none.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        bond: Bond,
        tasks: Set[str],
        *,
        on_join: Callable[[str], None],
        on_message: Callable[[str, Message], None],
        on_loss: Callable[[str, str], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._bond = bond
        self._tasks = tasks
        self._on_join = on_join
        self._on_message = on_message
        self._on_loss = on_loss
        self._strangers: List[_Guest] = []
        self._peers: Dict[str, _Guest] = {}
        loop.watch(listener.fileno(), READ, lambda _: self._accept())
        self._beat()

    def broadcast(self, message: Message) -> None:
        """Send a message to all that are connected."""
        for guest in list(self._peers.values()):
            if guest.session is not None:
                guest.line.send(guest.session.seal(message))

    def send(self, task: str, message: Message) -> None:
        """Send a message to one of them; dropped where it is not connected."""
        guest = self._peers.get(task)
        if guest is not None and guest.session is not None:
            guest.line.send(guest.session.seal(message))

    @property
    def connected(self) -> bool:
        """Whether any of the others is."""
        return bool(self._peers)

    def close(self) -> None:
        """End all links without a word."""
        self._loop.cancel("links")
        for guest in [*self._strangers, *self._peers.values()]:
            guest.line.close()
        self._strangers.clear()
        self._peers.clear()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        greeting = ChiefGreeting(self._bond.secret, self._bond.job, self._bond.attempt, os.urandom(NONCE_BYTES))
        line = Line(self._loop, connection, lambda data: self._take(guest, data), lambda why: self._ended(guest, why))
        guest = _Guest(line, greeting)
        self._strangers.append(guest)
        if len(self._strangers) > _STRANGERS:
            self._strangers.pop(0).line.close()

    def _take(self, guest: _Guest, data: bytes) -> None:
        if guest.session is not None:
            message = guest.session.open(data)
            if message != _BEAT:
                self._on_message(guest.greeting.task, message)
            return
        answer, session = guest.greeting.take(data)
        if session is None:
            guest.line.send(answer)
            return
        task = guest.greeting.task
        if task not in self._tasks or task in self._peers:
            raise LinkError(f"{task} is not expected")
        guest.session = session
        guest.line.trusted = True
        self._strangers.remove(guest)
        self._peers[task] = guest
        self._on_join(task)

    def _ended(self, guest: _Guest, reason: str) -> None:
        if guest in self._strangers:
            self._strangers.remove(guest)
            return
        task = guest.greeting.task
        if self._peers.get(task) is guest:
            del self._peers[task]
            self._on_loss(task, reason)

    def _beat(self) -> None:
        now = time.monotonic()
        for guest in [one for one in self._strangers if now - one.since > GREETING_DEADLINE_S]:
            self._strangers.remove(guest)
            guest.line.close()
        for guest in list(self._peers.values()):
            if now - guest.line.heard_at > self._bond.link_timeout_s:
                guest.line.close()
                self._ended(guest, silence(self._bond.link_timeout_s))
        self.broadcast(_BEAT)
        self._loop.after("links", self._bond.link_timeout_s / _BEATS_PER_TIMEOUT, self._beat)


class PeerEnd:
    """The other tasks' end of their link to the chief; connects again until the chief has answered once.

    Args:
        loop: In which it is served.
        chief: Where its agent listens.
        bond: What it has in common with us.
        task: Our task.
        join_timeout_s: For how long to try.
        on_join: Called when the chief has proven itself.
        on_message: Called with its messages.
        on_loss: Called once with a reason: the link broke, or never stood.
    """

    def __init__(
        self,
        loop: Loop,
        chief: Member,
        bond: Bond,
        task: str,
        join_timeout_s: float,
        *,
        on_join: Callable[[], None],
        on_message: Callable[[Message], None],
        on_loss: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._chief = chief
        self._bond = bond
        self._task = task
        self._join_timeout_s = join_timeout_s
        self._on_join = on_join
        self._on_message = on_message
        self._on_loss = on_loss

        self._pause = _RETRY_S[0]
        self._socket: Optional[socket.socket] = None
        self._line: Optional[Line] = None
        self._greeting: Optional[PeerGreeting] = None
        self._session: Optional[Session] = None
        self._last_reason = "no answer"
        self._connect()
        self._loop.after("join", join_timeout_s, self._never)

    @property
    def joined(self) -> bool:
        """Whether the chief has proven itself, and the link stands."""
        return self._session is not None

    def send(self, message: Message) -> None:
        """Send a message; dropped where there is no link."""
        if self._session is not None and self._line is not None:
            self._line.send(self._session.seal(message))

    def close(self) -> None:
        """End the link without a word."""
        for name in ("links", "join", "connect"):
            self._loop.cancel(name)
        self._session = None
        if self._line is not None:
            self._line.close()
        self._drop_socket()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        try:
            found = socket.getaddrinfo(self._chief.address, self._chief.link_port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(found[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(found[4])
        except BlockingIOError:
            pass
        except OSError as error:
            self._again(error.strerror or str(error))
            return
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), WRITE, lambda _: self._connected())

    def _connected(self) -> None:
        connection = self._socket
        if connection is None:
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._again(os.strerror(code))
            return
        self._socket = None
        self._greeting = PeerGreeting(
            self._bond.secret, self._bond.job, self._bond.attempt, self._task, os.urandom(NONCE_BYTES)
        )
        self._line = Line(self._loop, connection, self._take, self._ended)
        self._line.send(self._greeting.first())

    def _again(self, reason: str) -> None:
        self._last_reason = reason
        self._drop_socket()
        self._loop.after("connect", self._pause, self._connect)
        self._pause = min(self._pause * 2, _RETRY_S[1])

    def _take(self, data: bytes) -> None:
        if self._session is not None:
            message = self._session.open(data)
            if message != _BEAT:
                self._on_message(message)
        elif self._greeting is not None and self._line is not None:
            answer, self._session = self._greeting.take(data)
            self._line.trusted = True
            self._line.send(answer)
            self._loop.cancel("join")
            self._beat()
            self._on_join()

    def _ended(self, reason: str) -> None:
        if self._session is None:
            self._again(reason)
        else:
            self.close()
            self._on_loss(reason)

    def _never(self) -> None:
        self.close()
        waited = f"{self._join_timeout_s:g} s ({self._last_reason})"
        self._on_loss(f"its agent at port {self._chief.link_port} did not answer within {waited}")

    def _beat(self) -> None:
        if self._session is None or self._line is None:
            return
        if time.monotonic() - self._line.heard_at > self._bond.link_timeout_s:
            self._line.close()
            self._ended(silence(self._bond.link_timeout_s))
            return
        self.send(_BEAT)
        self._loop.after("links", self._bond.link_timeout_s / _BEATS_PER_TIMEOUT, self._beat)
