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
from collections.abc import Callable, Iterator
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
_CLOSED = (
    "its connection was closed before an answer came: another program uses this port, or too many unauthenticated "
    "connections keep rank 0 busy"
)


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
    rendezvous = TcpRendezvous(participants, place or f"at {host}:{port}", secret)
    try:
        if participants.rank == 0:
            rendezvous.serve(port, deadline_s, announce)
        else:
            rendezvous.connect((host, port), connect_s or deadline_s)
            rendezvous.enter(deadline_s)
    except BaseException:
        rendezvous.close()
        raise
    return rendezvous


class TcpRendezvous:
    """A rendezvous of processes; `join_tcp` returns one that all have joined.

    Attributes:
        secret: Secret that only these processes know, hexadecimal; new for each rendezvous.

    Args:
        participants: The processes; the others learn their number from rank 0.
        place: Where rank 0 is, for messages: ``at HOST:PORT``.
        secret: Secret with which they authenticate.
    """

    def __init__(self, participants: Participants, place: str, secret: str) -> None:
        self.secret = ""
        self._participants = participants
        self._place = place
        self._credentials = Credentials(_NAME, secret.encode(), str(participants.rank))
        self._loop = Loop()
        self._streams: dict[int, MessageStream] = {}  # rank 0 has one to each other rank, the others one to rank 0
        self._arrived: deque[tuple[int, Value | None]] = deque()  # None: the connection has ended
        self._refused: set[str] = set()  # addresses

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._participants.size

    @property
    def address(self) -> str:
        """Local address of a connection to another process; empty if unknown."""
        return next((stream.local_address for stream in self._streams.values() if stream.is_open), "")

    # --- coming together --------------------------------------------------------------------------------------------

    def serve(self, port: int, deadline_s: float, announce: Callable[[int], object]) -> None:
        """Wait, as rank 0, for all other processes."""
        try:
            listening = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise RendezvousError(
                f"{self._participants.name(0)} cannot listen on port {port}",
                cause=error.strerror or "",
                hint="choose another port: --rendezvous tcp://HOST:PORT",
            ) from error
        with listening:
            announce(listening.getsockname()[1])
            listening.setblocking(False)
            listener = StreamListener(
                self._loop,
                listening,
                self._credentials.chief_greeting,
                self.size,
                lambda stream: self._admit(listener, stream),
                on_refused=self._on_refused,
            )
            try:
                if not self._wait(lambda: len(self._streams) >= self.size - 1, time.monotonic() + deadline_s):
                    raise self._timed_out(deadline_s)
            finally:
                listener.close()
        drawn = secrets.token_hex(NONCE_BYTES)
        self._send({"size": self.size, "drawn": drawn})
        self._derive_secret(drawn)

    def _admit(self, listener: StreamListener, stream: MessageStream) -> None:
        rank = {str(rank): rank for rank in range(1, self.size)}.get(stream.peer)
        if rank is None or rank in self._streams:
            raise RendezvousError(
                f"a process joined {self._place} as rank {stream.peer}, but "
                + (f"{self.size} are expected" if rank is None else "this rank exists already"),
                hint="start all of them with the same options, each with its own --rank",
            )
        listener.release(stream)
        self._add(rank, stream)

    def _on_refused(self, address: str, error: Exception) -> None:
        if not isinstance(error, TimeoutError):
            self._refused.add(address)

    def _timed_out(self, waited_s: float) -> RendezvousError:
        missing = self._participants.names([rank for rank in range(1, self.size) if rank not in self._streams])
        unproven = ", ".join(sorted(self._refused)[:_UNPROVEN_NAMED])
        error = RendezvousError(
            f"timed out after {waited_s:g} s waiting for {missing} {self._place}: it has not started, "
            f"{'uses another directory, ' if self._place.startswith('in ') else ''}or cannot connect",
            cause=f"{unproven} failed authentication" if unproven else "",
        )
        self.abandon(error.message, FAILED_CODE)
        return error

    def connect(self, address: tuple[str, int], wait_s: float) -> None:
        """Add an authenticated connection to rank 0, which may not listen yet.

        Rank 0 closes unauthenticated connections if it has too many of them; a closed connection is opened again
        until time is over.
        """
        end = time.monotonic() + wait_s
        address_text = f"{address[0]}:{address[1]}"
        while True:
            try:
                refusal = self._prove(socket.create_connection(address, max(0.1, end - time.monotonic())), end)
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                if refusal is None:
                    return
                reason = _CLOSED
                if isinstance(refusal, LinkError):
                    raise UnansweredError(
                        f"the process at {address_text} does not know the secret of the rendezvous",
                        cause=str(refusal),
                        hint=f"use the same {SECRET_VARIABLE} for all processes, and a port that nothing else uses",
                    ) from refusal
            if time.monotonic() + _RETRY_S >= end:
                break
            time.sleep(_RETRY_S)
        first = self._participants.name(0)
        message = f"timed out after {wait_s:g} s waiting for {first} at {address_text}"
        raise UnansweredError(f"{message}: it has not started, or cannot be reached", cause=reason)

    def _prove(self, connection: socket.socket, end: float) -> Exception | None:
        """Authenticate a connection to rank 0 and add it; return why that fails."""
        ended: list[Exception] = []
        left_s = max(0.1, end - time.monotonic())
        connection.setblocking(False)
        stream = MessageStream(
            self._loop,
            connection,
            self._credentials.peer_greeting(),
            on_up=lambda: self._add(0, stream),
            on_message=lambda _: None,
            on_end=ended.append,
            deadline_s=left_s,
        )
        if self._wait(lambda: ended or self._streams, time.monotonic() + left_s):
            return ended[0] if ended else None
        stream.close()
        return TimeoutError("no answer")

    def enter(self, wait_s: float) -> None:
        """Wait for the start by rank 0, which sends the number of processes."""
        participants = self._participants
        start = self._receive("start", wait_s)
        size, drawn = start.get("size"), start.get("drawn")
        if not isinstance(size, int) or not isinstance(drawn, str) or not _HEXADECIMAL.fullmatch(drawn):
            raise self._unexpected()
        if self.size not in (0, size):
            raise RendezvousError(
                f"{participants.name(0)} expects {size} processes, and {participants.name(participants.rank)} "
                f"{self.size}",
                hint="start all of them with the same options",
            )
        self._participants = Participants(participants.rank, size, participants.nodes)
        self._derive_secret(drawn)

    def _derive_secret(self, drawn: str) -> None:
        self.secret = hmac.digest(self._credentials.secret, b"job " + bytes.fromhex(drawn), "sha256").hex()

    # --- rounds -----------------------------------------------------------------------------------------------------

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
            values = self._receive(about, deadline_s).get("values")
            if not isinstance(values, list) or len(values) != self.size or not _all_objects(values):
                raise self._unexpected()
            return values
        result = self._take(about, deadline_s, strict=True)
        missing = [rank for rank in sorted(self._streams) if rank not in result]
        if missing:
            raise RendezvousError(
                f"timed out after {deadline_s:g} s waiting for {self._participants.names(missing)} ({about})",
                cause=f"the rendezvous is {self._place}",
            )
        values = [mine, *(result[rank] for rank in sorted(result))]
        self._send({"about": about, "values": values})
        return values

    def send_to_rank_0(self, about: str, mine: Value) -> None:
        """Send `mine` to rank 0 without waiting; a value that cannot be sent is dropped."""
        self._send({"about": about, "value": mine})

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """Return, as rank 0, the values that arrived from others within `deadline_s` seconds, by rank."""
        return self._take(about, deadline_s, strict=False)

    def abandon(self, message: str, code: int) -> None:
        """Inform all others that this process gives up, with the reason."""
        self._send({"abandoned": self._participants.rank, "message": message, "code": code})

    def close(self) -> None:
        """Leave, and close the connections."""
        for stream in self._streams.values():
            stream.close()
        self._loop.close()

    def _take(self, about: str, deadline_s: float, *, strict: bool) -> dict[int, Value]:
        """Return the values of the others in a round, by rank; missing and late ones are omitted.

        Args:
            about: The round.
            deadline_s: Longest time, in seconds.
            strict: True to fail if a process is gone or gives up.
        """
        result: dict[int, Value] = {}
        waiting = set(self._streams)
        for rank, message in self._arrivals(deadline_s, lambda: waiting):
            if message is None and rank not in waiting:
                continue
            if message is None or "abandoned" in message:
                waiting.discard(rank)
                if strict:
                    raise self._broken(rank, message)
            elif message.get("about") == about and _all_objects([message.get("value")]):
                result[rank] = message["value"]
                waiting.discard(rank)
        return result

    def _broken(self, rank: int, message: Value | None) -> RendezvousError:
        process = self._participants.name(rank)
        if message is None:
            return RendezvousError(f"{process} is gone: its connection {self._place} broke")
        self._send(message)
        return _abandoned(process, message)

    def _receive(self, about: str, deadline_s: float) -> Value:
        """Return the next message of rank 0, in the round `about`."""
        first = self._participants.name(0)
        for _, answer in self._arrivals(deadline_s + SLACK_S, lambda: True):
            if answer is None:
                raise AbandonedError(first, f"its connection {self._place} broke", FAILED_CODE)
            if "abandoned" in answer:
                rank = answer["abandoned"]
                raise _abandoned(self._participants.name(rank) if isinstance(rank, int) else "a process", answer)
            return answer
        raise RendezvousError(f"timed out after {deadline_s:g} s waiting for {first} {self._place} ({about})")

    def _unexpected(self) -> RendezvousError:
        return RendezvousError(f"rank 0 {self._place} sent something that this version of fleet does not expect")

    # --- connections ------------------------------------------------------------------------------------------------

    def _add(self, rank: int, stream: MessageStream) -> None:
        """Take an authenticated connection."""

        def keep(message: Value) -> None:
            if len(self._arrived) > _MOST_UNREAD * len(self._streams):
                raise LinkError("too many messages at once")
            self._arrived.append((rank, message))

        self._streams[rank] = stream
        stream.buffer.limit = LONGEST_MESSAGE
        stream.on_message = keep
        stream.on_end = lambda _: self._arrived.append((rank, None))

    def _send(self, message: Value) -> None:
        """Send a message to all; the next round detects a connection that has ended."""
        for stream in self._streams.values():
            stream.send(message)
            stream.drain(_SEND_S)

    def _wait(self, done: Callable[[], object], end: float) -> bool:
        """Serve the connections until `done` is true; return False if time is over."""
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._loop.after("end", left, lambda: None)
            self._loop.turn()
        return True

    def _arrivals(self, deadline_s: float, needs_more: Callable[[], object]) -> Iterator[tuple[int, Value | None]]:
        """Yield the ranks whose messages arrive, or whose connections have ended, until time is over."""
        end = time.monotonic() + deadline_s
        self._arrived.extend((rank, None) for rank, stream in self._streams.items() if not stream.is_open)
        while needs_more() and self._wait(lambda: self._arrived, end):
            yield self._arrived.popleft()


def _all_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _abandoned(process: str, message: Value) -> AbandonedError:
    code = message.get("code")
    return AbandonedError(process, str(message.get("message")), code if isinstance(code, int) else FAILED_CODE)


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
