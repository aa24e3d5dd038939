"""Rendezvous at the address of rank 0, for nodes without a shared directory.

Each process connects to rank 0, and both prove that they know a secret as in train.agent.protocol.session. Messages
are authenticated, not encrypted, and contain no secrets. The secret of the job is derived from theirs and a random
number of rank 0.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from train.agent.host.loop import Loop
from train.agent.host.streams import MessageStream, StreamListener
from train.agent.protocol.session import LONGEST_MESSAGE, NONCE_BYTES, Credentials, LinkError
from train.errors import RendezvousError
from train.rendezvous.contract import FAILED_CODE, SLACK_S, AbandonedError, Participants, UnansweredError, Value

SECRET_VARIABLE = "FLEET_RENDEZVOUS_SECRET"  # noqa: S105 - the name of a variable

_NAME = "rendezvous"
_RETRY_S = 0.2
_SEND_S = 10.0
_UNPROVEN_NAMED = 4
_MOST_UNREAD = 8  # messages of each process
_HEXADECIMAL = re.compile(r"(?:[0-9a-f]{2})+")


class _Connections:
    """The connections of this process by rank, and what arrived on them."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.streams: dict[int, MessageStream] = {}
        self._arrived: deque[tuple[int, Value | None]] = deque()

    def add(self, rank: int, stream: MessageStream) -> None:
        """Take an authenticated connection."""

        def keep(message: Value) -> None:
            if len(self._arrived) > _MOST_UNREAD * len(self.streams):
                raise LinkError("too many messages at once")
            self._arrived.append((rank, message))

        self.streams[rank] = stream
        stream.buffer.limit = LONGEST_MESSAGE
        stream.on_message = keep
        stream.on_end = lambda _: self._arrived.append((rank, None))

    def send(self, rank: int, message: Value) -> bool:
        """Send a message; return False if the connection has ended, which the next round detects, too."""
        stream = self.streams[rank]
        stream.send(message)
        stream.drain(_SEND_S)
        return stream.can_send

    def wait(self, done: Callable[[], object], end: float) -> bool:
        """Serve the connections until `done` is true; return False if time is over."""
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.loop.after("end", left, lambda: None)
            self.loop.turn()
        return True

    def begin_round(self) -> None:
        """Report the connections that have ended again."""
        self._arrived.extend((rank, None) for rank, stream in self.streams.items() if not stream.is_open)

    def next(self, end: float) -> tuple[int, Value | None] | None:
        """Return a rank and its next message, or None for it if its connection has ended; None if time is over."""
        return self._arrived.popleft() if self.wait(lambda: self._arrived, end) else None

    def close(self) -> None:
        """Close the connections."""
        for stream in self.streams.values():
            stream.close()
        self.loop.close()


class TcpRendezvous:
    """A rendezvous that all processes have joined. Created by `join_tcp`.

    Attributes:
        size: Number of processes.
        secret: Secret that only these processes know, hexadecimal; new for each rendezvous.
        address: Local address of a connection to another process; empty if unknown.

    Args:
        participants: The processes; their number is known.
        place: Where rank 0 is, for messages: ``at HOST:PORT``.
        connections: Rank 0 has one to each other rank, the others have one to rank 0.
        secret: Secret of the job.
    """

    def __init__(self, participants: Participants, place: str, connections: _Connections, secret: str) -> None:
        self.size = participants.size
        self.secret = secret
        self._participants = participants
        self._place = place
        self._connections = connections
        self._others = sorted(connections.streams)
        self.address = next((stream.local_address for stream in connections.streams.values() if stream.is_open), "")

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """Send `mine` to all other processes; return the values of all in the order of their ranks.

        Args:
            about: Name of the round, different for each round.
            mine: Value of this process.
            deadline_s: Longest time until all values have arrived, in seconds.

        Raises:
            RendezvousError: Not all values arrived in time.
            AbandonedError: A process gave up.
        """
        if self._participants.rank:
            self.send_to_rank_0(about, mine)
            values = self.receive(about, deadline_s).get("values")
            if not isinstance(values, list) or len(values) != self.size or not _all_objects(values):
                raise _unexpected(self._place)
            return values
        result = self._take(about, deadline_s, strict=True)
        missing = [rank for rank in self._others if rank not in result]
        if missing:
            raise RendezvousError(
                f"timed out after {deadline_s:g} s waiting for {self._participants.names(missing)} ({about})",
                cause=f"the rendezvous is {self._place}",
            )
        values = [mine, *(result[rank] for rank in self._others)]
        for rank in self._others:
            self._connections.send(rank, {"about": about, "values": values})
        return values

    def send_to_rank_0(self, about: str, mine: Value) -> None:
        """Send `mine` to rank 0 without waiting; a value that cannot be sent is dropped."""
        self._connections.send(0, {"about": about, "value": mine})

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """Return, as rank 0, the values that arrived from others within `deadline_s` seconds, by rank."""
        return self._take(about, deadline_s, strict=False)

    def abandon(self, message: str, code: int) -> None:
        """Inform all others that this process gives up, with the reason."""
        words = {"abandoned": self._participants.rank, "message": message, "code": code}
        for rank in self._others:
            self._connections.send(rank, words)

    def close(self) -> None:
        """Leave, and close the connections."""
        self._connections.close()

    def _take(self, about: str, deadline_s: float, *, strict: bool) -> dict[int, Value]:
        """Return the values of the others in a round, by rank; missing and late ones are omitted.

        Args:
            about: The round.
            deadline_s: Longest time, in seconds.
            strict: True to fail if a process is gone or gives up.
        """
        result: dict[int, Value] = {}
        waiting = set(self._others)
        end = time.monotonic() + deadline_s
        self._connections.begin_round()
        while waiting and (arrived := self._connections.next(end)) is not None:
            rank, message = arrived
            if message is None and rank not in waiting:
                continue
            if message is None or "abandoned" in message:
                waiting.discard(rank)
                if strict:
                    self._raise_broken(rank, message)
            elif message.get("about") == about and _all_objects([message.get("value")]):
                result[rank] = message["value"]
                waiting.discard(rank)
        return result

    def _raise_broken(self, rank: int, message: Value | None) -> None:
        process = self._participants.name(rank)
        if message is None:
            raise RendezvousError(f"{process} is gone: its connection {self._place} broke")
        error = _abandoned(process, message)
        for other in self._others:
            if other != rank:
                self._connections.send(other, message)
        raise error

    def receive(self, about: str, deadline_s: float) -> Value:
        """Return the next message of rank 0, in the round `about`."""
        first = self._participants.name(0)
        self._connections.begin_round()
        arrived = self._connections.next(time.monotonic() + deadline_s + SLACK_S)
        if arrived is None:
            raise RendezvousError(f"timed out after {deadline_s:g} s waiting for {first} {self._place} ({about})")
        answer = arrived[1]
        if answer is None:
            raise AbandonedError(first, f"its connection {self._place} broke", FAILED_CODE)
        if "abandoned" in answer:
            rank = answer["abandoned"]
            raise _abandoned(self._participants.name(rank) if isinstance(rank, int) else "a process", answer)
        return answer


def _all_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _abandoned(process: str, message: Value) -> AbandonedError:
    code = message.get("code")
    return AbandonedError(process, str(message.get("message")), code if isinstance(code, int) else FAILED_CODE)


def _unexpected(place: str) -> RendezvousError:
    return RendezvousError(f"rank 0 {place} sent something that this version of fleet does not expect")


# --- coming together ------------------------------------------------------------------------------------------------


def join_tcp(
    host: str,
    port: int,
    participants: Participants,
    secret: str,
    deadline_s: float,
    *,
    place: str = "",
    announce: Callable[[int], object] = lambda _: None,
    connect_s: float | None = None,
) -> TcpRendezvous:
    """Join the rendezvous at rank 0's address.

    Args:
        host: Name or address of rank 0.
        port: Port of rank 0, which listens on all its addresses; 0: a free one.
        participants: The expected processes.
        secret: Secret that only these processes know.
        deadline_s: Longest time until all have joined, in seconds.
        place: Where the rendezvous is, for messages; empty: at this address.
        announce: Called by rank 0 with its port.
        connect_s: Longest time to connect to rank 0, in seconds; None: until all have joined.

    Raises:
        UnansweredError: No process at the address knows the secret.
        RendezvousError: Not all joined in time, or one did not know the secret.
    """
    place = place or f"at {host}:{port}"
    credentials = Credentials(_NAME, secret.encode(), str(participants.rank))
    connections = _Connections()
    try:
        if participants.rank == 0:
            return _Server(place, participants, credentials, connections).wait(port, deadline_s, announce)
        _connect((host, port), participants.name(0), credentials, connections, connect_s or deadline_s)
        return _join(place, participants, credentials, connections, deadline_s)
    except BaseException:
        connections.close()
        raise


def _job_secret(credentials: Credentials, drawn: str) -> str:
    return hmac.digest(credentials.secret, b"job " + bytes.fromhex(drawn), "sha256").hex()


class _Server:
    """Rank 0 while the other processes join.

    Args:
        place: Where rank 0 is, for messages: ``at HOST:PORT``.
        participants: The expected processes.
        credentials: Of the rendezvous.
        connections: Takes those of the processes that joined.
    """

    def __init__(
        self, place: str, participants: Participants, credentials: Credentials, connections: _Connections
    ) -> None:
        self._place = place
        self._participants = participants
        self._credentials = credentials
        self._connections = connections
        self._joined = connections.streams
        self._refused: set[str] = set()  # addresses

    def wait(self, port: int, deadline_s: float, announce: Callable[[int], object]) -> TcpRendezvous:
        """Wait for all processes; return the rendezvous."""
        participants, connections = self._participants, self._connections
        try:
            listening = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise RendezvousError(
                f"{participants.name(0)} cannot listen on port {port}",
                cause=error.strerror or "",
                hint="choose another port: --rendezvous tcp://HOST:PORT",
            ) from error
        with listening:
            announce(listening.getsockname()[1])
            listening.setblocking(False)
            listener = StreamListener(
                connections.loop,
                listening,
                self._credentials.chief_greeting,
                participants.size,
                lambda stream: self._arrived(listener, stream),
                on_refused=self._on_refused,
            )
            try:
                end = time.monotonic() + deadline_s
                if not connections.wait(lambda: len(self._joined) >= participants.size - 1, end):
                    raise self._timed_out(deadline_s)
            finally:
                listener.close()
        drawn = secrets.token_hex(NONCE_BYTES)
        for rank in self._joined:
            if not connections.send(rank, {"size": participants.size, "drawn": drawn}):
                raise RendezvousError(f"{participants.name(rank)} is gone: its connection {self._place} broke")
        return TcpRendezvous(participants, self._place, connections, _job_secret(self._credentials, drawn))

    def _arrived(self, listener: StreamListener, stream: MessageStream) -> None:
        rank = int(stream.peer) if re.fullmatch(r"[0-9]{1,9}", stream.peer) else -1
        if not 0 < rank < self._participants.size or rank in self._joined:
            raise RendezvousError(
                f"a process joined {self._place} as rank {stream.peer}, but "
                + ("this rank exists already" if rank in self._joined else f"{self._participants.size} are expected"),
                hint="start all of them with the same options, each with its own --rank",
            )
        listener.release(stream)
        self._connections.add(rank, stream)

    def _on_refused(self, address: str, error: Exception) -> None:
        if not isinstance(error, TimeoutError):
            self._refused.add(address)

    def _timed_out(self, waited_s: float) -> RendezvousError:
        missing = self._participants.names(
            [rank for rank in range(1, self._participants.size) if rank not in self._joined]
        )
        error = RendezvousError(
            f"timed out after {waited_s:g} s waiting for {missing} {self._place}: it has not started, "
            f"{'uses another directory, ' if self._place.startswith('in ') else ''}or cannot connect",
            cause=self._without_secret(),
        )
        for rank in self._joined:
            self._connections.send(rank, {"abandoned": 0, "message": error.message, "code": FAILED_CODE})
        return error

    def _without_secret(self) -> str:
        addresses = sorted(self._refused)
        if not addresses:
            return ""
        more = f" and {len(addresses) - _UNPROVEN_NAMED} more" if len(addresses) > _UNPROVEN_NAMED else ""
        return f"{', '.join(addresses[:_UNPROVEN_NAMED])}{more} failed authentication"


def _join(
    place: str, participants: Participants, credentials: Credentials, connections: _Connections, wait_s: float
) -> TcpRendezvous:
    welcome = TcpRendezvous(participants, place, connections, "").receive("start", wait_s)
    size, drawn = welcome.get("size"), welcome.get("drawn")
    if not isinstance(size, int) or not isinstance(drawn, str) or not _HEXADECIMAL.fullmatch(drawn):
        raise _unexpected(place)
    if participants.size not in (0, size):
        raise RendezvousError(
            f"{participants.name(0)} expects {size} processes, and {participants.name(participants.rank)} "
            f"{participants.size}",
            hint="start all of them with the same options",
        )
    whole = Participants(participants.rank, size, participants.nodes)
    return TcpRendezvous(whole, place, connections, _job_secret(credentials, drawn))


def _connect(
    address: tuple[str, int], first: str, credentials: Credentials, connections: _Connections, wait_s: float
) -> None:
    """Add an authenticated connection to rank 0, which may not listen yet.

    Rank 0 closes unauthenticated connections if it has too many of them; a closed connection is opened again until
    time is over.
    """
    end = time.monotonic() + wait_s
    address_text = f"{address[0]}:{address[1]}"
    closed = 0
    reason = ""
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(0.1, end - time.monotonic()))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            refusal = _prove(connection, credentials, connections, end)
            if refusal is None:
                return
            if isinstance(refusal, LinkError):
                raise UnansweredError(
                    f"the process at {address_text} does not know the secret of the rendezvous",
                    cause=str(refusal),
                    hint=f"use the same {SECRET_VARIABLE} for all processes, and a port that nothing else uses",
                ) from refusal
            closed += 1
        if time.monotonic() + _RETRY_S >= end:
            break
        time.sleep(_RETRY_S)
    timeout = f"timed out after {wait_s:g} s waiting for {first} at {address_text}"
    if closed:
        raise UnansweredError(
            f"{timeout}: it does not answer",
            cause=f"{closed} connection{'s were' if closed > 1 else ' was'} closed before an answer came: "
            "another program uses this port, or too many unauthenticated connections keep rank 0 busy",
        )
    raise UnansweredError(f"{timeout}: it has not started, or cannot be reached", cause=reason)


def _prove(
    connection: socket.socket, credentials: Credentials, connections: _Connections, end: float
) -> Exception | None:
    """Authenticate a connection to rank 0 and add it; return why that fails."""
    ended: list[Exception] = []
    left_s = max(0.1, end - time.monotonic())
    connection.setblocking(False)
    stream = MessageStream(
        connections.loop,
        connection,
        credentials.peer_greeting(),
        on_up=lambda: connections.add(0, stream),
        on_message=lambda _: None,
        on_end=ended.append,
        deadline_s=left_s,
    )
    if connections.wait(lambda: ended or connections.streams, time.monotonic() + left_s):
        return ended[0] if ended else None
    stream.close()
    return TimeoutError("no answer")


def parse_address(text: str, first: str) -> tuple[str, int]:
    """Return host and port of ``tcp://HOST:PORT``; the default host is `first`.

    Raises:
        RendezvousError: It is malformed, or has no host.
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
