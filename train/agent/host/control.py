"""The control socket of the supervisor on its host: subscribers receive updates, query state, or request a stop.

Each packet is one record of train.agent.protocol.records. Requests: Follow (subscribe), Stop, and Inspect (query,
answered up to End). Answers and updates: Beat (log or records were written), Progress, Usage, Stopped. Packets that a
slow reader does not take are dropped: a packet that is already queued wakes the reader just as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Set

from train.agent.host.loop import READ, Loop
from train.agent.protocol.records import Beat, End, Inspect, Record, decode, encode

if TYPE_CHECKING:
    import socket
    from typing import TypeAlias

_LONGEST = 1 << 18  # bytes of a packet
_WAKE = encode(Beat(0.0))


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a path through a descriptor of the directory: a socket's path has room for only 107 bytes."""
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def listen(path: str) -> socket.socket:
    """Return the supervisor's listening socket at `path`.

    Raises:
        OSError: it cannot be made.
    """
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_path(path) as short:
            listener.bind(short)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def connect(path: str) -> Optional[socket.socket]:
    """Return a connection to the supervisor at `path`, or None if there is none."""
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_path(path) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        return None
    return connection


def send_record(connection: socket.socket, record: Record) -> bool:
    """Send a record; return False if the supervisor has ended."""
    try:
        connection.send(encode(record))
    except OSError:
        return False
    return True


def receive(connection: socket.socket, deadline_s: float) -> Optional[Record]:
    """Return the next record, or None if the supervisor has ended.

    Raises:
        TimeoutError: nothing came for `deadline_s` seconds.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(max(0.0, deadline_s) * 1000):
        raise TimeoutError(f"waited {deadline_s:.0f} s for the supervisor")
    try:
        packet = connection.recv(_LONGEST)
    except OSError:
        return None
    return decode(packet) if packet else None


def receive_packet(connection: socket.socket) -> Optional[bytes]:
    """Return the next packet, which is empty if the supervisor has ended; None if there is none yet."""
    import socket

    try:
        return connection.recv(_LONGEST, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def receive_all(connection: socket.socket, deadline_s: float) -> Iterator[Record]:
    """Yield all records until the supervisor ends.

    Raises:
        TimeoutError: it has not ended after `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while (record := receive(connection, end - time.monotonic())) is not None:
        yield record


def query(path: str, deadline_s: float) -> Optional[List[Record]]:
    """Return the current state of the supervisor, or None without a supervisor."""
    connection = connect(path)
    if connection is None:
        return None
    records: List[Record] = []
    with connection, contextlib.suppress(TimeoutError):
        send_record(connection, Inspect())
        for record in receive_all(connection, deadline_s):
            if isinstance(record, End):
                break
            records.append(record)
    return records


Answer: TypeAlias = "Callable[[Record, Callable[[Record], None]], bool]"
"""Called with a request and a way to answer it; True if its sender subscribes to updates."""


class ControlServer:
    """The supervisor's end of the control socket.

    Args:
        loop: Event loop that serves it.
        listener: From `listen`.
        answer: Is called with every request.
    """

    def __init__(self, loop: Loop, listener: socket.socket, answer: Answer) -> None:
        self._loop = loop
        self._listener = listener
        self._answer = answer
        self._connections: Set[socket.socket] = set()
        self._subscribers: Set[socket.socket] = set()
        loop.watch(listener.fileno(), READ, lambda _: self._accept())

    def wake(self) -> None:
        """Notify subscribers that log or records were written."""
        self._publish(_WAKE)

    def publish(self, record: Record) -> None:
        """Send a record that is not stored in a file to all subscribers."""
        if self._subscribers:
            self._publish(encode(record))

    def close(self) -> None:
        """Close all connections, and stop listening."""
        for connection in list(self._connections):
            self._drop(connection)
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _publish(self, packet: bytes) -> None:
        for connection in list(self._subscribers):
            self._send(connection, packet)

    def _send(self, connection: socket.socket, packet: bytes) -> None:
        try:
            connection.send(packet)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._connections.add(connection)
        self._loop.watch(connection.fileno(), READ, lambda _: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            request = decode(connection.recv(_LONGEST))  # nothing at the end of input
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(connection)
            return
        if self._answer(request, lambda record: self._send(connection, encode(record))):
            self._subscribers.add(connection)
            self._send(connection, _WAKE)  # for records written since the reader's last read

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._subscribers.discard(connection)
            self._loop.unwatch(connection.fileno())
            connection.close()
