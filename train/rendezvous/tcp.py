"""A meeting at the address of rank 0, for nodes without a directory in common.

Each process connects to rank 0, and both prove to know a secret as in train.agent.protocol.session; what they tell
is sealed, not hidden, and holds no secrets. The secret of the job is made from theirs and a number that rank 0 has
drawn.
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
from typing import Any

from train.agent.protocol.admission import Acceptor, most_strangers
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.session import (
    LONGEST_GREETING,
    NONCE_BYTES,
    ChiefGreeting,
    LinkError,
    PeerGreeting,
    Session,
)
from train.errors import MeetingError
from train.rendezvous.meeting import FAILED_CODE, SLACK_S, AbandonedError, Party, Value, other_size

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
    """A connection, and what came over it.

    Args:
        connection: Proven or not.
        peer: Address of the other end.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket = connection
        self.peer = peer
        self.session: Session | None = None
        self._buffer = LineBuffer(LONGEST_GREETING)

    def prove(self, session: Session) -> None:
        """From now on, what comes must be sealed, and may be long."""
        rest = self._buffer.take(self._buffer.size)
        self._buffer = LineBuffer(_LONGEST)
        self._buffer.feed(rest)
        self.session = session

    def read(self) -> bool:
        """Take what is there; False if the other end is gone."""
        try:
            data = self.socket.recv(_AT_ONCE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer.feed(data)
        return bool(data)

    def line(self) -> bytes | None:
        """The next line; None until it is complete.

        Raises:
            LinkError: it is too long.
        """
        try:
            return self._buffer.line()
        except LineTooLongError as error:
            raise LinkError(str(error)) from error

    def send(self, message: Value) -> None:
        """Send a sealed message.

        Raises:
            OSError: the other end takes nothing, or is gone.
        """
        assert self.session is not None  # noqa: S101 - proven
        self.write(self.session.seal(message))

    def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: the other end takes nothing, or is gone.
        """
        self.socket.settimeout(_SEND_S)
        self.socket.sendall(data)
        self.socket.settimeout(0.0)


class TcpMeeting:
    """A meeting at an address; see train.rendezvous.meeting.Meeting. Made by `meet_at`.

    Args:
        party: Who is expected; its size is known.
        place: Where, for messages.
        lines: To all others, by rank; a process that is not rank 0 has the one to that.
        secret: Of the job.
    """

    def __init__(self, party: Party, place: str, lines: dict[int, _Line], secret: str) -> None:
        self.size = party.size
        self.secret = secret
        self._party = party
        self._place = place
        self._lines = lines
        self.address = next((str(line.socket.getsockname()[0]) for line in lines.values()), "")

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """See Meeting."""
        if self._party.rank:
            self._say({"about": about, "value": mine})
            values = self.hear(about, deadline_s).get("values")
            if not isinstance(values, list) or len(values) != self.size or not _all_objects(values):
                raise _unexpected(self._place)
            return values
        result = self._take(about, deadline_s, strict=True)
        missing = [rank for rank in range(1, self.size) if rank not in result]
        if missing:
            raise MeetingError(
                f"waited {deadline_s:g} s for what {self._party.names(missing)} had to tell ({about})",
                cause=f"the processes meet at {self._place}",
            )
        values = [mine, *(result[rank] for rank in range(1, self.size))]
        for rank in range(1, self.size):
            self._send(rank, {"about": about, "values": values})
        return values

    def give(self, about: str, mine: Value) -> None:
        """See Meeting."""
        try:
            self._say({"about": about, "value": mine})
        except MeetingError:
            return

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """See Meeting."""
        return self._take(about, deadline_s, strict=False)

    def abandon(self, message: str, code: int) -> None:
        """See Meeting."""
        words = {"abandoned": self._party.rank, "message": message, "code": code}
        for rank in self._lines:
            self._send(rank, words)

    def close(self) -> None:
        """See Meeting."""
        for line in self._lines.values():
            line.socket.close()

    # --- rank 0 -----------------------------------------------------------------------------------------------------

    def _take(self, about: str, deadline_s: float, *, strict: bool) -> dict[int, Value]:
        """What the others tell in a round, by rank; those that are gone, or late, are left out.

        Args:
            about: The round.
            deadline_s: Longest time, in seconds.
            strict: One that is gone or gives up ends the meeting.
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
        who = self._party.name(rank)
        if message is None:
            raise MeetingError(f"{who} is gone: its connection to {self._place} broke")
        error = _abandoned(who, message)
        for other in self._lines:
            if other != rank:
                self._send(other, message)
        raise error

    def _send(self, rank: int, message: Value) -> None:
        try:
            self._lines[rank].send(message)
        except OSError:  # it is missed in the next round
            return

    # --- the others -------------------------------------------------------------------------------------------------

    def _say(self, message: Value) -> None:
        try:
            self._lines[0].send(message)
        except OSError as error:
            raise self._gone() from error

    def hear(self, about: str, deadline_s: float) -> Value:
        """What rank 0 tells next, in the round `about`."""
        answers: list[Value | None] = []
        waiting = {0}

        def took(_: int, message: Value | None) -> None:
            answers.append(message)
            waiting.clear()

        _serve(self._lines, waiting, time.monotonic() + deadline_s + SLACK_S, took)
        if not answers:
            raise MeetingError(f"waited {deadline_s:g} s for {self._party.name(0)} at {self._place} ({about})")
        answer = answers[0]
        if answer is None:
            raise self._gone()
        if "abandoned" in answer:
            rank = answer["abandoned"]
            raise _abandoned(self._party.name(rank) if isinstance(rank, int) else "a process", answer)
        return answer

    def _gone(self) -> MeetingError:
        return AbandonedError(self._party.name(0), f"its connection at {self._place} broke", FAILED_CODE)


def _all_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _abandoned(who: str, message: Value) -> AbandonedError:
    code = message.get("code")
    return AbandonedError(who, str(message.get("message")), code if isinstance(code, int) else FAILED_CODE)


def _unexpected(place: str) -> MeetingError:
    return MeetingError(f"rank 0 at {place} sent something that this version of fleet does not expect")


def _serve(lines: dict[int, _Line], waiting: set[int], end: float, took: Callable[[int, Value | None], None]) -> None:
    """Hand over what comes over `lines` until nobody is waited for or time is over; None: the other end is gone."""
    with selectors.DefaultSelector() as selector:
        for rank, line in lines.items():
            line.socket.settimeout(0.0)
            selector.register(line.socket, selectors.EVENT_READ, rank)
        for rank, line in lines.items():
            _hand_over(rank, line, took)  # it came together with something else
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


def meet_at(host: str, port: int, party: Party, secret: str, deadline_s: float) -> TcpMeeting:
    """Join the meeting at rank 0's address.

    Args:
        host: Name or address of rank 0.
        port: Where it listens; for rank 0 itself, on all its addresses.
        party: Who is expected.
        secret: Known to all of them and to nobody else.
        deadline_s: Longest time until all are there, in seconds.

    Raises:
        MeetingError: not all came in time, or one did not know the secret.
    """
    if party.rank == 0:
        return _Host(port, party, secret, f"{host}:{port}").wait(deadline_s)
    return _visit(host, port, party, secret, deadline_s)


def _job_secret(secret: str, drawn: str) -> str:
    return hmac.digest(secret.encode(), b"job " + bytes.fromhex(drawn), "sha256").hex()


class _Stranger:
    """A connection that has not proven anything yet.

    Args:
        line: The connection.
        greeting: The proof, as far as it has come.
        until: Time by which it must be complete, of the monotonic clock.
    """

    def __init__(self, line: _Line, greeting: ChiefGreeting, until: float) -> None:
        self.line = line
        self.greeting = greeting
        self.until = until


class _Host:
    """Rank 0 while the others come.

    Args:
        port: Where it listens.
        party: Who is expected.
        secret: Of the meeting.
        place: For messages.
    """

    def __init__(self, port: int, party: Party, secret: str, place: str) -> None:
        self._party = party
        self._secret = secret
        self._place = place
        self._proven: dict[int, _Line] = {}
        self._unproven: dict[_Stranger, None] = {}  # the oldest first
        self._most_unproven = most_strangers(party.size)
        self._refused: set[str] = set()  # addresses
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise MeetingError(
                f"{party.name(0)} cannot listen on port {port}",
                cause=error.strerror or "",
                hint="choose another port: --rendezvous tcp://HOST:PORT",
            ) from error
        self._acceptor = Acceptor(self._listener)

    def wait(self, deadline_s: float) -> TcpMeeting:
        """The meeting, once all are there."""
        with self._listener, self._selector:
            try:
                self._wait(deadline_s)
            except BaseException:
                for line in self._proven.values():
                    line.socket.close()
                raise
            finally:
                self._acceptor.close()
                for stranger in list(self._unproven):
                    self._drop(stranger)
        drawn = secrets.token_hex(NONCE_BYTES)
        meeting = TcpMeeting(self._party, self._place, self._proven, _job_secret(self._secret, drawn))
        for rank, line in self._proven.items():
            try:
                line.send({"size": self._party.size, "drawn": drawn})
            except OSError as error:
                meeting.close()
                raise MeetingError(
                    f"{self._party.name(rank)} is gone: its connection to {self._place} broke"
                ) from error
        return meeting

    def _wait(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while len(self._proven) < self._party.size - 1:
            now = time.monotonic()
            if now >= end:
                raise self._absent(deadline_s)
            self._drop_late(now)
            until = min([end, *(item.until for item in itertools.islice(self._unproven, 1))])
            for key, _ in self._selector.select(max(0.0, until - now)):
                self._ready(key.data)

    def _drop_late(self, now: float) -> None:
        for stranger in [item for item in self._unproven if item.until <= now]:
            self._drop(stranger)

    def _drop(self, stranger: _Stranger) -> None:
        del self._unproven[stranger]
        self._selector.unregister(stranger.line.socket)
        stranger.line.socket.close()

    def _ready(self, stranger: _Stranger | None) -> None:
        if stranger is None:
            self._accept()
        elif stranger in self._unproven:  # it may have been dropped for another in the same turn
            self._hear(stranger)

    def _hear(self, stranger: _Stranger) -> None:
        line, greeting = stranger.line, stranger.greeting
        alive = line.read()
        try:
            while line.session is None and (text := line.line()) is not None:
                answer, session = greeting.take(text)
                if answer:
                    line.write(answer)
                if session is not None:
                    line.prove(session)
        except Exception:  # noqa: BLE001 - of a stranger's bytes; nothing that they hold may end the rendezvous
            alive = False
        if line.session is not None:
            del self._unproven[stranger]
            self._selector.unregister(line.socket)
            self._arrived(line, greeting.task)
        elif not alive:
            self._refused.add(line.peer)
            self._drop(stranger)

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        connection, address = accepted
        greeting = ChiefGreeting(self._secret.encode(), _NAME, 0, secrets.token_bytes(NONCE_BYTES))
        stranger = _Stranger(_Line(connection, str(address[0])), greeting, time.monotonic() + _GREETING_S)
        self._unproven[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        if len(self._unproven) > self._most_unproven:
            self._drop(next(iter(self._unproven)))

    def _arrived(self, line: _Line, task: str) -> None:
        rank = int(task) if re.fullmatch(r"[0-9]{1,9}", task) else -1
        if not 0 < rank < self._party.size or rank in self._proven:
            raise MeetingError(
                f"a process came to {self._place} as rank {task}, and "
                + ("there is one already" if rank in self._proven else f"{self._party.size} are expected"),
                hint="start all of them with the same options, each with its own --rank",
            )
        self._proven[rank] = line

    def _absent(self, waited_s: float) -> MeetingError:
        missing = [rank for rank in range(1, self._party.size) if rank not in self._proven]
        who = self._party.names(missing)
        error = MeetingError(
            f"waited {waited_s:g} s for {who} at {self._place}: it has not started, or cannot connect",
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
        return f"{', '.join(addresses[:_UNPROVEN_NAMED])}{more} came without the secret"


def _visit(host: str, port: int, party: Party, secret: str, deadline_s: float) -> TcpMeeting:
    place = f"{host}:{port}"
    line = _proven(host, port, party, secret, deadline_s)
    try:
        welcome = TcpMeeting(party, place, {0: line}, "").hear("start", deadline_s)
        size, drawn = _read_welcome(welcome, place)
        if party.size not in (0, size):
            raise other_size(party, size)
    except BaseException:
        line.socket.close()
        raise
    whole = Party(party.rank, size, party.nodes)
    return TcpMeeting(whole, place, {0: line}, _job_secret(secret, drawn))


def _read_welcome(welcome: Value, place: str) -> tuple[int, str]:
    size, drawn = welcome.get("size"), welcome.get("drawn")
    if not isinstance(size, int) or not isinstance(drawn, str) or not _HEXADECIMAL.fullmatch(drawn):
        raise _unexpected(place)
    return size, drawn


class _HungUpError(Exception):
    """The other end closed the connection before it had answered."""


def _proven(host: str, port: int, party: Party, secret: str, deadline_s: float) -> _Line:
    """A connection to rank 0 on which both have proven to know the secret.

    Rank 0 closes connections that have not proven anything when it has too many of them; such a connection is made
    again until time is over.
    """
    end = time.monotonic() + deadline_s
    closed = 0
    while True:
        line = _connected(host, port, end)
        if isinstance(line, str):
            break
        try:
            _prove(line, party, secret, end, f"{host}:{port}")
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
    who = f"waited {deadline_s:g} s for {party.name(0)} at {host}:{port}"
    if closed:
        raise MeetingError(
            f"{who}: it does not answer",
            cause=f"{closed} connection{'s were' if closed > 1 else ' was'} closed before an answer came: "
            "another program uses this port, or too many connections without the secret keep rank 0 busy",
        )
    raise MeetingError(f"{who}: it has not started, or cannot be reached", cause=line)


def _prove(line: _Line, party: Party, secret: str, end: float, place: str) -> None:
    greeting = PeerGreeting(secret.encode(), _NAME, 0, str(party.rank), secrets.token_bytes(NONCE_BYTES))
    try:
        line.write(greeting.first())
        text = _next_line(line, end)
    except OSError as error:
        raise _HungUpError from error
    except LinkError as error:
        raise _without_secret(place, error) from error
    try:
        answer, session = greeting.take(text)
    except LinkError as error:
        raise _without_secret(place, error) from error
    try:
        line.write(answer)
    except OSError as error:
        raise _HungUpError from error
    line.prove(session)


def _without_secret(place: str, error: LinkError) -> MeetingError:
    return MeetingError(
        f"who answers at {place} does not know the secret of the meeting",
        cause=str(error),
        hint=f"use the same {SECRET_VARIABLE} for all processes, and a port that nothing else uses",
    )


def _connected(host: str, port: int, end: float) -> _Line | str:
    """A connection to rank 0, which may not listen yet; why there is none where time is over."""
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
    """Host and port of ``tcp://HOST:PORT``; without a host, those of `first`.

    Raises:
        MeetingError: it is malformed, or there is no host.
    """
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]") or first
    if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not host or "/" in host:
        raise MeetingError(
            f"--rendezvous {text} is no address",
            cause="" if host else "which node is the first is not known",
            hint="give the address of the process with rank 0: --rendezvous tcp://HOST:PORT",
        )
    return host, int(port)
