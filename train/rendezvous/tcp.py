"""A meeting at the address of rank 0, for nodes without a folder in common.

Each process connects to rank 0, and both prove to know a secret as in train.agent.link; what they tell is sealed, not
hidden, and holds no secrets. The secret of the job is made from theirs and a number that rank 0 has drawn.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable

from train.agent.link import LONGEST_GREETING, NONCE_BYTES, ChiefGreeting, LinkError, PeerGreeting, Session
from train.agent.wire import LineBuffer, LineTooLongError
from train.rendezvous.meeting import FAILED_CODE, SLACK_S, AbandonedError, MeetingError, Party, Value, other_size

SECRET_VARIABLE = "FLEET_RENDEZVOUS_SECRET"  # noqa: S105 - the name of a variable

_NAME = "rendezvous"
_LONGEST = 16 << 20  # bytes of a message
_RETRY_S = 0.2
_SEND_S = 10.0
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
            answer = self.hear(about, deadline_s)
            return [dict(value) for value in answer["values"]]
        found = self._take(about, deadline_s, strict=True)
        missing = [rank for rank in range(1, self.size) if rank not in found]
        if missing:
            raise MeetingError(
                f"waited {deadline_s:g} s for what {self._party.names(missing)} had to tell ({about})",
                cause=f"the processes meet at {self._place}",
            )
        values = [mine, *(found[rank] for rank in range(1, self.size))]
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

    def abandon(self, sentence: str, code: int) -> None:
        """See Meeting."""
        words = {"abandoned": self._party.rank, "sentence": sentence, "code": code}
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
        found: dict[int, Value] = {}
        waiting = set(self._lines)

        def took(rank: int, message: Value | None) -> None:
            if message is not None and "abandoned" not in message:
                if message.get("about") == about:
                    found[rank] = dict(message["value"])
                    waiting.discard(rank)
                return
            waiting.discard(rank)
            if strict:
                self._broken(rank, message)

        _serve(self._lines, waiting, time.monotonic() + deadline_s, took)
        return found

    def _broken(self, rank: int, message: Value | None) -> None:
        who = self._party.name(rank)
        if message is None:
            raise MeetingError(f"{who} is gone: its connection to {self._place} broke")
        error = AbandonedError(who, str(message.get("sentence")), int(message.get("code", FAILED_CODE)))
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
            who = self._party.name(int(answer["abandoned"]))
            raise AbandonedError(who, str(answer.get("sentence")), int(answer.get("code", FAILED_CODE)))
        return answer

    def _gone(self) -> MeetingError:
        return AbandonedError(self._party.name(0), f"its connection at {self._place} broke", FAILED_CODE)


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
        self._strangers: set[str] = set()
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise MeetingError(
                f"{party.name(0)} cannot listen on port {port}",
                cause=error.strerror or "",
                next_step="another port: --rendezvous tcp://HOST:PORT",
            ) from error

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
                for key in list(self._selector.get_map().values()):
                    if key.data is not None:
                        key.data[0].socket.close()
        drawn = secrets.token_hex(NONCE_BYTES)
        meeting = TcpMeeting(self._party, self._place, self._proven, _job_secret(self._secret, drawn))
        for line in self._proven.values():
            line.send({"size": self._party.size, "drawn": drawn})
        return meeting

    def _wait(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while len(self._proven) < self._party.size - 1:
            left = end - time.monotonic()
            if left <= 0:
                raise self._absent(deadline_s)
            for key, _ in self._selector.select(left):
                self._ready(key.data)

    def _ready(self, known: tuple[_Line, ChiefGreeting] | None) -> None:
        if known is None:
            self._accept()
            return
        line, greeting = known
        alive = line.read()
        try:
            while line.session is None and (text := line.line()) is not None:
                answer, session = greeting.take(text)
                if answer:
                    line.write(answer)
                if session is not None:
                    line.prove(session)
                    self._arrived(line, greeting.task)
        except (LinkError, OSError):
            alive = False
        if line.session is not None or not alive:
            self._selector.unregister(line.socket)
        if line.session is None and not alive:
            self._strangers.add(line.peer)
            line.socket.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        connection.settimeout(0.0)
        greeting = ChiefGreeting(self._secret.encode(), _NAME, 0, secrets.token_bytes(NONCE_BYTES))
        self._selector.register(connection, selectors.EVENT_READ, (_Line(connection, str(address[0])), greeting))

    def _arrived(self, line: _Line, task: str) -> None:
        rank = int(task) if task.isdecimal() else -1
        if not 0 < rank < self._party.size or rank in self._proven:
            raise MeetingError(
                f"a process came to {self._place} as rank {task}, and "
                + ("there is one already" if rank in self._proven else f"{self._party.size} are expected"),
                next_step="start all of them with the same options, each with its own --rank",
            )
        self._proven[rank] = line

    def _absent(self, waited_s: float) -> MeetingError:
        missing = [rank for rank in range(1, self._party.size) if rank not in self._proven]
        who = self._party.names(missing)
        error = MeetingError(
            f"waited {waited_s:g} s for {who} at {self._place}: it has not started, or cannot connect",
            cause=f"{', '.join(sorted(self._strangers))} came without the secret" if self._strangers else "",
        )
        words = {"abandoned": 0, "sentence": error.sentence, "code": FAILED_CODE}
        for line in self._proven.values():
            with contextlib.suppress(OSError):
                line.send(words)
        return error


def _visit(host: str, port: int, party: Party, secret: str, deadline_s: float) -> TcpMeeting:
    place = f"{host}:{port}"
    end = time.monotonic() + deadline_s
    line = _connected(host, port, end)
    if isinstance(line, str):
        raise MeetingError(
            f"waited {deadline_s:g} s for {party.name(0)} at {place}: it has not started, or cannot be reached",
            cause=line,
        )
    try:
        _prove(line, party, secret, end, place)
        welcome = TcpMeeting(party, place, {0: line}, "").hear("start", deadline_s)
        size = int(welcome["size"])
        if party.size not in (0, size):
            raise other_size(party, size)
    except BaseException:
        line.socket.close()
        raise
    whole = Party(party.rank, size, party.nodes)
    return TcpMeeting(whole, place, {0: line}, _job_secret(secret, str(welcome["drawn"])))


def _prove(line: _Line, party: Party, secret: str, end: float, place: str) -> None:
    greeting = PeerGreeting(secret.encode(), _NAME, 0, str(party.rank), secrets.token_bytes(NONCE_BYTES))
    try:
        line.write(greeting.first())
        answer, session = greeting.take(_next_line(line, end))
        line.write(answer)
    except (LinkError, OSError) as error:
        raise MeetingError(
            f"who answers at {place} does not know the secret of the meeting",
            cause=str(error),
            next_step=f"the same {SECRET_VARIABLE} for all processes, and a port that nobody else uses",
        ) from error
    line.prove(session)


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
            raise LinkError("it hung up")
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
            next_step="--rendezvous tcp://HOST:PORT, the address of the process with rank 0",
        )
    return host, int(port)
