"""Pass contents on to other hosts while they arrive, so that large contents leave the client once.

    receiver → {"contents": SHA-256 of the list of hashes}
    sender   → the bytes of all these contents, in that order

Both ends know a secret that the client sends to each of them. The receiver verifies each content by its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
from typing import Callable, List, Optional

from train.agent.checkpoints.transfer import BROKEN, CONNECT_S, SILENCE_S, Wire
from train.agent.files.contents import Receiver
from train.agent.protocol.channel import LineBuffer
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Relay
from train.agent.protocol.session import LONGEST_GREETING, Credentials

_MOST_CONNECTIONS = 32
_PIECE = 1 << 20
_JOB = "relay"  # takes the place of a job in the authentication


def _credentials(secret: str) -> Credentials:
    return Credentials(_JOB, bytes.fromhex(secret), "")


def _digest(hashes: List[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


class RelayServer:
    """Send the contents that a receiver has, and those that arrive, to hosts that know the secret.

    Args:
        listener: Where they connect; closed with this object.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._receiver: Optional[Receiver] = None
        self._credentials: Optional[Credentials] = None
        self._grown = threading.Condition()
        self._closed = False
        self._connections: List[socket.socket] = []
        self._threads: List[threading.Thread] = []

    @property
    def port(self) -> int:
        """Return the port where other hosts connect."""
        return int(self._listener.getsockname()[1])

    def start(self, secret: str, receiver: Receiver) -> None:
        """Serve the contents of `receiver` in threads; repeated calls do nothing."""
        if self._receiver is None and not self._closed:
            self._credentials = _credentials(secret)
            self._receiver = receiver
            receiver.on_received = self._notify
            self._listener.setblocking(True)
            self._run(self._accept)

    def close(self) -> None:
        """End all connections, and wait for their threads; repeated calls do nothing."""
        with self._grown:
            self._closed = True
            self._grown.notify_all()
            for connection in (self._listener, *self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _run(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]

    def _notify(self) -> None:
        with self._grown:
            self._grown.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:  # the listener was closed
                return
            with self._grown:
                if self._closed or len(self._connections) >= _MOST_CONNECTIONS:
                    connection.close()
                    continue
                self._connections.append(connection)
            self._run(lambda taken=connection: self._serve(taken))  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(Exception):  # nothing that a host sends may end more than this
            self._send_contents(connection)
        with self._grown:
            self._connections.remove(connection)
        connection.close()

    def _send_contents(self, connection: socket.socket) -> None:
        assert self._credentials is not None  # set before the first connection is accepted
        assert self._receiver is not None
        wire = Wire(connection, None, LineBuffer(LONGEST_GREETING))
        wire.authenticate(self._credentials.chief_greeting())
        contents = self._receiver.contents
        if wire.receive_message().get("contents") != _digest([digest for digest, _ in contents]):
            return
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SILENCE_S), 0))
        start = 0
        for digest, size in contents:
            if size and self._await(start) > start:
                self._send_file(connection, digest, start, size)
            start += size

    def _send_file(self, connection: socket.socket, digest: str, start: int, size: int) -> None:
        assert self._receiver is not None
        fd = self._receiver.open_content(digest)
        try:
            sent = 0
            while sent < size:
                available = min(size, self._await(start + sent) - start)
                count = os.sendfile(connection.fileno(), fd, sent, min(available - sent, _PIECE))
                if not count:  # a program has made a file that fleet push placed shorter
                    raise ConnectionError("the contents are gone")
                sent += count
        finally:
            os.close(fd)

    def _await(self, position: int) -> int:
        """Return the number of bytes that have arrived, when they are more than `position`."""
        receiver = self._receiver
        assert receiver is not None
        with self._grown:
            self._grown.wait_for(lambda: self._closed or receiver.received > position or receiver.is_broken)
            if self._closed or receiver.is_broken:
                raise ConnectionError("the contents do not arrive")
            return receiver.received


def fetch(relay: Relay, receiver: Receiver, tick: Callable[[], None]) -> bool:
    """Receive contents from another host; return False if they did not all arrive.

    Args:
        relay: The host and the secret.
        receiver: What takes the contents, of which none has arrived yet.
        tick: Called after each piece.

    Raises:
        OSError: the contents cannot be written.
    """
    try:
        connection = socket.create_connection((relay.address, relay.port), CONNECT_S)
    except OSError:
        return False
    with connection:
        try:
            wire = Wire(connection, None, LineBuffer(LONGEST_GREETING))
            wire.authenticate(_credentials(relay.secret).peer_greeting())
            wire.send_message({"contents": _digest([digest for digest, _ in receiver.contents])})
        except BROKEN:
            return False
        pieces = wire.raw(sum(size for _, size in receiver.contents))
        while True:
            try:
                piece = next(pieces, b"")
            except BROKEN:
                return False
            if not piece:
                return True
            try:
                receiver.feed(piece)
            except RefusedError:
                return False
            tick()
