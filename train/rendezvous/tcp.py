"""Rendezvous at the address of rank 0, for nodes without a shared directory.

Each process connects to rank 0, and both prove that they know a secret as in train.agent.protocol.session. Messages
are authenticated, not encrypted, and contain no secrets. The secret of the job is derived from theirs and a random
number of rank 0.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import re
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from train.agent.protocol.admission import Acceptor, max_unauthenticated
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.session import (
    LONGEST_GREETING,
    NONCE_BYTES,
    ChiefGreeting,
    LinkError,
    PeerGreeting,
    Session,
)
from train.errors import RendezvousError
from train.rendezvous.contract import FAILED_CODE, SLACK_S, AbandonedError, Participants, Value, other_size

SECRET_VARIABLE = "FLEET_RENDEZVOUS_SECRET"  # noqa: S105 - the name of a variable

_NAME = "rendezvous"
_LONGEST = 16 << 20  # bytes of a message
_RETRY_S = 0.2
_SEND_S = 10.0
_GREETING_S = 5.0
_UNPROVEN_NAMED = 4
_HEXADECIMAL = re.compile(r"(?:[0-9a-f]{2})+")
_AT_ONCE = 1 << 16


class _Line:
    """A connection and its input.

    Args:
        connection: The connection, authenticated or not.
        peer: Address of the other end.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket = connection
        self.peer = peer
        self.session: Session | None = None
        self._buffer = LineBuffer(LONGEST_GREETING)

    def prove(self, session: Session) -> None:
        """Require sealed input from now on, and accept long messages."""
        rest = self._buffer.take(self._buffer.size)
        self._buffer = LineBuffer(_LONGEST)
        self._buffer.feed(rest)
        self.session = session

    def read(self) -> bool:
        """Read the available input; return False if the other end closed the connection."""
        try:
            data = self.socket.recv(_AT_ONCE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer.feed(data)
        return bool(data)

    def line(self) -> bytes | None:
        """Return the next line; None until it is complete.

        Raises:
            LinkError: It is too long.
        """
        try:
            return self._buffer.line()
        except LineTooLongError as error:
            raise LinkError(str(error)) from error

    def send(self, message: Value) -> None:
        """Send a sealed message.

        Raises:
            OSError: The other end does not read, or closed the connection.
        """
        assert self.session is not None  # noqa: S101 - proven
        self.write(self.session.seal(message))

    def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: The other end does not read, or closed the connection.
        """
        self.socket.settimeout(_SEND_S)
        self.socket.sendall(data)
        self.socket.settimeout(0.0)


class TcpRendezvous:
    """A rendezvous at an address; see train.rendezvous.contract.Rendezvous. Created by `join_tcp`.

    Args:
        participants: The processes; their number is known.
        place: Address for messages.
        lines: Connections by rank: rank 0 has one to each other rank, the others have one to rank 0.
        secret: Secret of the job.
    """

    def __init__(self, participants: Participants, place: str, lines: dict[int, _Line], secret: str) -> None:
        self.size = participants.size
        self.secret = secret
        self._participants = participants
        self._place = place
        self._lines = lines
        self.address = next((str(line.socket.getsockname()[0]) for line in lines.values()), "")

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """See Rendezvous."""
        if self._participants.rank:
            self._send_to_first({"about": about, "value": mine})
            values = self.receive(about, deadline_s).get("values")
            if not isinstance(values, list) or len(values) != self.size or not _all_objects(values):
                raise _unexpected(self._place)
            return values
        result = self._take(about, deadline_s, strict=True)
        missing = [rank for rank in range(1, self.size) if rank not in result]
        if missing:
            raise RendezvousError(
                f"timed out after {deadline_s:g} s waiting for {self._participants.names(missing)} ({about})",
                cause=f"the rendezvous is at {self._place}",
            )
        values = [mine, *(result[rank] for rank in range(1, self.size))]
        for rank in range(1, self.size):
            self._send(rank, {"about": about, "values": values})
        return values

    def give(self, about: str, mine: Value) -> None:
        """See Rendezvous."""
        try:
            self._send_to_first({"about": about, "value": mine})
        except RendezvousError:
            return

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """See Rendezvous."""
        return self._take(about, deadline_s, strict=False)

    def abandon(self, message: str, code: int) -> None:
        """See Rendezvous."""
        words = {"abandoned": self._participants.rank, "message": message, "code": code}
        for rank in self._lines:
            self._send(rank, words)

    def close(self) -> None:
        """See Rendezvous."""
        for line in self._lines.values():
            line.socket.close()

    # --- rank 0 -----------------------------------------------------------------------------------------------------

    def _take(self, about: str, deadline_s: float, *, strict: bool) -> dict[int, Value]:
        """Return the values of the others in a round, by rank; missing and late ones are omitted.

        Args:
            about: The round.
            deadline_s: Longest time, in seconds.
            strict: True to fail if a process is gone or gives up.
        """
        result: dict[int, Value] = {}
        waiting = set(self._lines)

        def took(rank: int, message: Value | None) -> None:
            if message is not None and "abandoned" not in message:
                if message.get("about") == about and _all_objects([message.get("value")]):
                    result[rank] = message["value"]
                    waiting.discard(rank)
                return
            waiting.discard(rank)
            if strict:
                self._broken(rank, message)

        _serve(self._lines, waiting, time.monotonic() + deadline_s, took)
        return result

    def _broken(self, rank: int, message: Value | None) -> None:
        process = self._participants.name(rank)
        if message is None:
            raise RendezvousError(f"{process} is gone: its connection to {self._place} broke")
        error = _abandoned(process, message)
        for other in self._lines:
            if other != rank:
                self._send(other, message)
        raise error

    def _send(self, rank: int, message: Value) -> None:
        try:
            self._lines[rank].send(message)
        except OSError:  # the next round detects that it is missing
            return

    # --- the others -------------------------------------------------------------------------------------------------

    def _send_to_first(self, message: Value) -> None:
        try:
            self._lines[0].send(message)
        except OSError as error:
            raise self._lost_first() from error

    def receive(self, about: str, deadline_s: float) -> Value:
        """Return the next message of rank 0, in the round `about`."""
        answers: list[Value | None] = []
        waiting = {0}

        def took(_: int, message: Value | None) -> None:
            answers.append(message)
            waiting.clear()

        _serve(self._lines, waiting, time.monotonic() + deadline_s + SLACK_S, took)
        if not answers:
            first = self._participants.name(0)
            raise RendezvousError(f"timed out after {deadline_s:g} s waiting for {first} at {self._place} ({about})")
        answer = answers[0]
        if answer is None:
            raise self._lost_first()
        if "abandoned" in answer:
            rank = answer["abandoned"]
            raise _abandoned(self._participants.name(rank) if isinstance(rank, int) else "a process", answer)
        return answer

    def _lost_first(self) -> RendezvousError:
        return AbandonedError(self._participants.name(0), f"its connection at {self._place} broke", FAILED_CODE)


def _all_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _abandoned(process: str, message: Value) -> AbandonedError:
    code = message.get("code")
    return AbandonedError(process, str(message.get("message")), code if isinstance(code, int) else FAILED_CODE)


def _unexpected(place: str) -> RendezvousError:
    return RendezvousError(f"rank 0 at {place} sent something that this version of fleet does not expect")


def _serve(lines: dict[int, _Line], waiting: set[int], end: float, took: Callable[[int, Value | None], None]) -> None:
    """Pass the messages of `lines` to `took` until `waiting` is empty or time is over; None: connection closed."""
    with selectors.DefaultSelector() as selector:
        for rank, line in lines.items():
            line.socket.settimeout(0.0)
            selector.register(line.socket, selectors.EVENT_READ, rank)
        for rank, line in lines.items():
            _hand_over(rank, line, took)  # it arrived together with an earlier message
        while waiting and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                alive = lines[key.data].read()
                _hand_over(key.data, lines[key.data], took)
                if not alive:
                    selector.unregister(key.fileobj)
                    if key.data in waiting:
                        took(key.data, None)


def _hand_over(rank: int, line: _Line, took: Callable[[int, Value | None], None]) -> None:
    assert line.session is not None  # noqa: S101 - proven
    try:
        while (text := line.line()) is not None:
            took(rank, line.session.open(text))
    except LinkError:
        took(rank, None)


# --- coming together ------------------------------------------------------------------------------------------------


def join_tcp(host: str, port: int, participants: Participants, secret: str, deadline_s: float) -> TcpRendezvous:
    """Join the rendezvous at rank 0's address.

    Args:
        host: Name or address of rank 0.
        port: Port of rank 0; rank 0 listens on all its addresses.
        participants: The expected processes.
        secret: Secret that only these processes know.
        deadline_s: Longest time until all have joined, in seconds.

    Raises:
        RendezvousError: Not all joined in time, or one did not know the secret.
    """
    if participants.rank == 0:
        return _Server(port, participants, secret, f"{host}:{port}").wait(deadline_s)
    return _join(host, port, participants, secret, deadline_s)


def _job_secret(secret: str, drawn: str) -> str:
    return hmac.digest(secret.encode(), b"job " + bytes.fromhex(drawn), "sha256").hex()


class _Candidate(NamedTuple):
    """A connection that is not authenticated yet."""

    line: _Line
    greeting: ChiefGreeting
    until: float  # deadline of the authentication on the monotonic clock


class _Server:
    """Rank 0 while the other processes join.

    Args:
        port: Port to listen on.
        participants: The expected processes.
        secret: Secret of the rendezvous.
        place: Address for messages.
    """

    def __init__(self, port: int, participants: Participants, secret: str, place: str) -> None:
        self._participants = participants
        self._secret = secret
        self._place = place
        self._proven: dict[int, _Line] = {}
        self._unproven: dict[_Candidate, None] = {}  # the oldest first
        self._most_unproven = max_unauthenticated(participants.size)
        self._refused: set[str] = set()  # addresses
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise RendezvousError(
                f"{participants.name(0)} cannot listen on port {port}",
                cause=error.strerror or "",
                hint="choose another port: --rendezvous tcp://HOST:PORT",
            ) from error
        self._acceptor = Acceptor(self._listener)

    def wait(self, deadline_s: float) -> TcpRendezvous:
        """Wait for all processes; return the rendezvous."""
        with self._listener, self._selector:
            try:
                self._wait(deadline_s)
            except BaseException:
                for line in self._proven.values():
                    line.socket.close()
                raise
            finally:
                self._acceptor.close()
                for candidate in list(self._unproven):
                    self._drop(candidate)
        drawn = secrets.token_hex(NONCE_BYTES)
        rendezvous = TcpRendezvous(self._participants, self._place, self._proven, _job_secret(self._secret, drawn))
        for rank, line in self._proven.items():
            try:
                line.send({"size": self._participants.size, "drawn": drawn})
            except OSError as error:
                rendezvous.close()
                raise RendezvousError(
                    f"{self._participants.name(rank)} is gone: its connection to {self._place} broke"
                ) from error
        return rendezvous

    def _wait(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while len(self._proven) < self._participants.size - 1:
            now = time.monotonic()
            if now >= end:
                raise self._timed_out(deadline_s)
            self._drop_late(now)
            until = min([end, *(item.until for item in itertools.islice(self._unproven, 1))])
            for key, _ in self._selector.select(max(0.0, until - now)):
                self._ready(key.data)

    def _drop_late(self, now: float) -> None:
        for candidate in [item for item in self._unproven if item.until <= now]:
            self._drop(candidate)

    def _drop(self, candidate: _Candidate) -> None:
        del self._unproven[candidate]
        self._selector.unregister(candidate.line.socket)
        candidate.line.socket.close()

    def _ready(self, candidate: _Candidate | None) -> None:
        if candidate is None:
            self._accept()
        elif candidate in self._unproven:  # it may have been dropped earlier in the same turn
            self._authenticate(candidate)

    def _authenticate(self, candidate: _Candidate) -> None:
        line, greeting = candidate.line, candidate.greeting
        alive = line.read()
        try:
            while line.session is None and (text := line.line()) is not None:
                answer, session = greeting.take(text)
                if answer:
                    line.write(answer)
                if session is not None:
                    line.prove(session)
        except Exception:  # noqa: BLE001 - untrusted input must not end the rendezvous
            alive = False
        if line.session is not None:
            del self._unproven[candidate]
            self._selector.unregister(line.socket)
            self._arrived(line, greeting.slot)
        elif not alive:
            self._refused.add(line.peer)
            self._drop(candidate)

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        connection, address = accepted
        greeting = ChiefGreeting(self._secret.encode(), _NAME, 0, secrets.token_bytes(NONCE_BYTES))
        candidate = _Candidate(_Line(connection, str(address[0])), greeting, time.monotonic() + _GREETING_S)
        self._unproven[candidate] = None
        self._selector.register(connection, selectors.EVENT_READ, candidate)
        if len(self._unproven) > self._most_unproven:
            self._drop(next(iter(self._unproven)))

    def _arrived(self, line: _Line, task: str) -> None:
        rank = int(task) if re.fullmatch(r"[0-9]{1,9}", task) else -1
        if not 0 < rank < self._participants.size or rank in self._proven:
            raise RendezvousError(
                f"a process joined at {self._place} as rank {task}, but "
                + ("this rank exists already" if rank in self._proven else f"{self._participants.size} are expected"),
                hint="start all of them with the same options, each with its own --rank",
            )
        self._proven[rank] = line

    def _timed_out(self, waited_s: float) -> RendezvousError:
        ranks = [rank for rank in range(1, self._participants.size) if rank not in self._proven]
        missing = self._participants.names(ranks)
        error = RendezvousError(
            f"timed out after {waited_s:g} s waiting for {missing} at {self._place}: it has not started, "
            "or cannot connect",
            cause=self._without_secret(),
        )
        words = {"abandoned": 0, "message": error.message, "code": FAILED_CODE}
        for line in self._proven.values():
            with contextlib.suppress(OSError):
                line.send(words)
        return error

    def _without_secret(self) -> str:
        addresses = sorted(self._refused)
        if not addresses:
            return ""
        more = f" and {len(addresses) - _UNPROVEN_NAMED} more" if len(addresses) > _UNPROVEN_NAMED else ""
        return f"{', '.join(addresses[:_UNPROVEN_NAMED])}{more} failed authentication"


def _join(host: str, port: int, participants: Participants, secret: str, deadline_s: float) -> TcpRendezvous:
    place = f"{host}:{port}"
    line = _proven(host, port, participants, secret, deadline_s)
    try:
        welcome = TcpRendezvous(participants, place, {0: line}, "").receive("start", deadline_s)
        size, drawn = _read_welcome(welcome, place)
        if participants.size not in (0, size):
            raise other_size(participants, size)
    except BaseException:
        line.socket.close()
        raise
    whole = Participants(participants.rank, size, participants.nodes)
    return TcpRendezvous(whole, place, {0: line}, _job_secret(secret, drawn))


def _read_welcome(welcome: Value, place: str) -> tuple[int, str]:
    size, drawn = welcome.get("size"), welcome.get("drawn")
    if not isinstance(size, int) or not isinstance(drawn, str) or not _HEXADECIMAL.fullmatch(drawn):
        raise _unexpected(place)
    return size, drawn


class _HungUpError(Exception):
    """The other end closed the connection before it answered."""


def _proven(host: str, port: int, participants: Participants, secret: str, deadline_s: float) -> _Line:
    """Return an authenticated connection to rank 0.

    Rank 0 closes unauthenticated connections if it has too many of them; a closed connection is opened again until
    time is over.
    """
    end = time.monotonic() + deadline_s
    closed = 0
    while True:
        line = _connected(host, port, end)
        if isinstance(line, str):
            break
        try:
            _prove(line, participants, secret, end, f"{host}:{port}")
        except _HungUpError:
            line.socket.close()
            closed += 1
        except BaseException:
            line.socket.close()
            raise
        else:
            return line
        if time.monotonic() + _RETRY_S >= end:
            line = "connections are accepted and closed again without an answer"
            break
        time.sleep(_RETRY_S)
    timeout = f"timed out after {deadline_s:g} s waiting for {participants.name(0)} at {host}:{port}"
    if closed:
        raise RendezvousError(
            f"{timeout}: it does not answer",
            cause=f"{closed} connection{'s were' if closed > 1 else ' was'} closed before an answer came: "
            "another program uses this port, or too many unauthenticated connections keep rank 0 busy",
        )
    raise RendezvousError(f"{timeout}: it has not started, or cannot be reached", cause=line)


def _prove(line: _Line, participants: Participants, secret: str, end: float, place: str) -> None:
    greeting = PeerGreeting(secret.encode(), _NAME, 0, str(participants.rank), secrets.token_bytes(NONCE_BYTES))
    try:
        line.write(greeting.first())
        answer, session = greeting.take(_next_line(line, end))
        line.write(answer)
    except OSError as error:
        raise _HungUpError from error
    except LinkError as error:
        raise _without_secret(place, error) from error
    line.prove(session)


def _without_secret(place: str, error: LinkError) -> RendezvousError:
    return RendezvousError(
        f"the process at {place} does not know the secret of the rendezvous",
        cause=str(error),
        hint=f"use the same {SECRET_VARIABLE} for all processes, and a port that nothing else uses",
    )


def _connected(host: str, port: int, end: float) -> _Line | str:
    """Connect to rank 0, which may not listen yet; return the reason if time is over."""
    while True:
        try:
            return _Line(socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())), host)
        except OSError as error:
            if time.monotonic() + _RETRY_S >= end:
                return error.strerror or str(error)
        time.sleep(_RETRY_S)


def _next_line(line: _Line, end: float) -> bytes:
    while (text := line.line()) is None:
        line.socket.settimeout(max(0.1, end - time.monotonic()))
        if not line.read():
            raise _HungUpError
    return text


def parse_place(text: str, first: str) -> tuple[str, int]:
    """Return host and port of ``tcp://HOST:PORT``; the default host is `first`.

    Raises:
        RendezvousError: It is malformed, or there is no host.
    """
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]") or first
    if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not host or "/" in host:
        raise RendezvousError(
            f"--rendezvous {text} is not an address",
            cause="" if host else "the first node is unknown",
            hint="give the address of the process with rank 0: --rendezvous tcp://HOST:PORT",
        )
    return host, int(port)
