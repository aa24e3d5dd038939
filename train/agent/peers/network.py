"""Measure the network between hosts: each agent sends to the next one of a ring, and receives from the one before.

All agents do so at the same time, as in a ring all-reduce. Both ends authenticate; the data itself is not.
Time and bytes are limited.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from typing import BinaryIO, Iterator, List, NamedTuple

from train.agent.host.streams import start_connection
from train.agent.protocol.records import Member
from train.agent.protocol.session import LONGEST_GREETING, Credentials, LinkError

DEADLINE_S = 15.0  # for the whole measurement
STREAM_S = 2.0  # of data to the next member
STREAM_BYTES = 256 << 20  # the most data to the next member
_GREETING_S = 5.0
_PINGS = 50
_PING = b"p" * 64
_END_OF_PINGS = b"e" * 64
_PIECE = 1 << 20  # bytes
_SLICE_S = 0.05  # each gives a sample of the bandwidth
_LEAST_SLICES = 4  # of which the first one is left out: TCP starts slowly
_SETTLE_S = 0.1  # between the last message and the stream


class Samples(NamedTuple):
    """The measurements of one member."""

    latencies_s: List[float]  # one way, to the next member
    bytes_s: List[float]  # from the member before


def measure(listener: socket.socket, credentials: Credentials, members: List[Member]) -> Samples:
    """Measure the connections of this member of a ring.

    Args:
        listener: Listens on the link port of this member.
        credentials: Of this member and the ring.
        members: All members, in the order of the ring.

    Raises:
        OSError: a connection cannot be made, or breaks.
        LinkError: the other end does not authenticate, or the deadline has passed.
    """
    at = [member.slot for member in members].index(credentials.slot)
    receiver = _Receiver(listener, credentials, members[at - 1].slot, time.monotonic() + DEADLINE_S)
    receiver.start()
    try:
        latencies = _send(credentials, members[(at + 1) % len(members)], receiver)
    finally:
        receiver.join(DEADLINE_S + _GREETING_S)
    if receiver.error is not None:
        raise receiver.error
    return Samples(latencies, receiver.samples)


class _Receiver(threading.Thread):
    """Answer the messages of the member before, and receive its stream."""

    def __init__(self, listener: socket.socket, credentials: Credentials, sender: str, until: float) -> None:
        super().__init__(daemon=True)
        self._listener = listener
        self._credentials = credentials
        self._sender = sender
        self._until = until
        self.pinged = threading.Event()  # the member before has sent all of its messages
        self.samples: List[float] = []
        self.error: "Exception | None" = None

    def run(self) -> None:
        try:
            with self._accept() as connection, connection.makefile("rb") as stream:
                self._authenticate(connection, stream)
                for _ in range(_PINGS + 1):
                    if stream.read(len(_PING)) != _PING:
                        break
                    connection.sendall(_PING)
                self.pinged.set()
                connection.settimeout(DEADLINE_S)
                self.samples = rates(list(_arrivals(stream)))
                connection.sendall(b"r")
        except (OSError, LinkError, ValueError) as error:
            self.error = error
        finally:
            self.pinged.set()

    def _accept(self) -> socket.socket:
        left_s = max(self._until - time.monotonic(), 0.0)
        if not select.select([self._listener], [], [], left_s)[0]:
            raise LinkError(f"{self._sender} did not connect within {DEADLINE_S:g} s")
        connection, _ = self._listener.accept()
        connection.setblocking(True)
        connection.settimeout(_GREETING_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _authenticate(self, connection: socket.socket, stream: BinaryIO) -> None:
        greeting = self._credentials.chief_greeting()
        session = None
        while session is None:
            answer, session = greeting.take(_read_line(stream))
            connection.sendall(answer)
        if greeting.slot != self._sender:
            raise LinkError(f"{greeting.slot!r} connected instead of {self._sender}")


def _send(credentials: Credentials, receiver: Member, before: _Receiver) -> List[float]:
    """Send messages and a stream to the next member; return the latency of each message."""
    with contextlib.closing(_connect(receiver)) as connection, connection.makefile("rb") as stream:
        greeting = credentials.peer_greeting()
        connection.sendall(greeting.first())
        connection.sendall(greeting.take(_read_line(stream))[0])
        latencies = []
        for _ in range(_PINGS):
            began = time.monotonic()
            connection.sendall(_PING)
            if stream.read(len(_PING)) != _PING:
                raise LinkError("the connection ended early")
            latencies.append((time.monotonic() - began) / 2)
        connection.sendall(_END_OF_PINGS)
        before.pinged.wait(DEADLINE_S)
        time.sleep(_SETTLE_S)
        _stream(connection)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(DEADLINE_S)
        if stream.read(1) != b"r":  # everything has arrived
            raise LinkError("the connection ended early")
        return latencies


def _connect(receiver: Member) -> socket.socket:
    connection = start_connection(receiver.address, receiver.link_port)
    if not select.select([], [connection], [], _GREETING_S)[1]:
        connection.close()
        raise LinkError(f"{receiver.slot} does not answer at {receiver.address}:{receiver.link_port}")
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        connection.close()
        raise OSError(error, os.strerror(error))
    connection.settimeout(_GREETING_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _stream(connection: socket.socket) -> None:
    """Send data for some time, or up to a number of bytes."""
    piece = memoryview(os.urandom(_PIECE))  # a network that compresses must not look faster
    sent, end = 0, time.monotonic() + STREAM_S
    while sent < STREAM_BYTES and time.monotonic() < end:
        connection.sendall(piece)
        sent += len(piece)


class Arrival(NamedTuple):
    """The number of bytes that have arrived at a time."""

    at: float
    received: int


def _arrivals(stream: BinaryIO) -> Iterator[Arrival]:
    """Yield the progress of a stream, about every 50 ms, until its end."""
    buffer = bytearray(_PIECE)
    count, last = 0, time.monotonic()
    yield Arrival(last, 0)
    while True:
        got = stream.readinto1(buffer)  # type: ignore[attr-defined]
        now = time.monotonic()
        count += got
        if count > STREAM_BYTES + _PIECE:
            raise LinkError("the other end sends too much")
        if not got or now - last >= _SLICE_S:
            yield Arrival(now, count)
            last = now
        if not got:
            return


def rates(arrivals: List[Arrival]) -> List[float]:
    """Return samples of the bandwidth in bytes per second: one for each slice but the first, or one for all."""
    slices = [
        (later.received - earlier.received) / (later.at - earlier.at)
        for earlier, later in zip(arrivals, arrivals[1:])  # noqa: B905, RUF007 - Python 3.10
        if later.at - earlier.at >= _SLICE_S / 2 and later.received > earlier.received
    ]
    if len(slices) < _LEAST_SLICES:
        seconds = arrivals[-1].at - arrivals[0].at if arrivals else 0.0
        return [arrivals[-1].received / seconds] if seconds > 0 and arrivals[-1].received else []
    return slices[1:]


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline(LONGEST_GREETING)
    if not line.endswith(b"\n"):
        raise LinkError("the connection ended early")
    return line
