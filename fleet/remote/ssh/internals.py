"""A faster import, transports, and receive buffers, which depend on what paramiko does not document.

They are used only with the versions that they were tested with. With others, fabric makes the clients, and
paramiko's own transports, each with its thread, and its buffers are used.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from socket import socket
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

PROVEN = ("5.1.",)
"""Versions of paramiko that this module was tested with."""


def _find_version() -> str:
    """Return the version of paramiko as the name of its directory of metadata has it; empty: unknown."""
    spec = find_spec("paramiko")
    if spec is None or not spec.origin:
        return ""
    names = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))  # noqa: PTH120, PTH208 - pathlib reads more
    versions = [name[9:-10] for name in names if name.startswith("paramiko-") and name.endswith(".dist-info")]
    return versions[0] if len(versions) == 1 else ""


def _import_lean() -> None:
    """Import paramiko without modules that it needs for little, and which take longer to import than paramiko itself.

    Paramiko uses invoke for ``Match exec`` in configurations of OpenSSH, which this program reads by itself, and
    importlib.metadata for its version. If a version of paramiko requires them, the import fails, and is repeated.
    """
    version = _find_version()
    lean = {"invoke": None, "importlib.metadata": SimpleNamespace(version=lambda _: version)}
    if "paramiko" in sys.modules or not version.startswith(PROVEN):
        return
    replaced = {name: module for name, module in lean.items() if name not in sys.modules}
    sys.modules.update(replaced)  # type: ignore[arg-type] # the import of a module that is None fails
    try:
        import paramiko  # noqa: F401
    except ImportError:
        return
    finally:
        for name in replaced:
            del sys.modules[name]


_import_lean()

import paramiko  # noqa: E402
from paramiko.buffered_pipe import BufferedPipe, PipeTimeout  # noqa: E402
from paramiko.common import OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED, cMSG_CHANNEL_WINDOW_ADJUST  # noqa: E402

from fleet.remote.dialing import take  # noqa: E402
from fleet.remote.ssh.driven import DrivenTransport, opening_of_socket  # noqa: E402
from fleet.remote.ssh.loop import LOOP  # noqa: E402


def is_proven() -> bool:
    """Return whether the installed version of paramiko is one that this module was tested with."""
    return paramiko.__version__.startswith(PROVEN)


def make_transport(sock: Any, **options: Any) -> paramiko.Transport:
    """Return a transport over a socket; `options` are arguments of paramiko.Transport."""
    if is_proven() and isinstance(sock, socket):
        return DrivenTransport(sock, LOOP, **options)
    return paramiko.Transport(sock, **options)


def prepare(
    transport: paramiko.Transport, command: str, path: str, window: int | None, on_send: Callable[[], object]
) -> paramiko.Channel | None:
    """Let a transport that is not started yet run a command, or connect to a socket, as soon as it has logged in.

    Args:
        transport: The transport.
        command: Command line for the shell of the host.
        path: Absolute path of a socket of the host; empty: the command is run.
        window: Bytes that the host may send before they are read; None: the default.
        on_send: Called when the command is about to be sent.

    Returns:
        The channel for `await_opened`, and that of a command for `await_command`; None: the transport cannot do that.
    """
    if not isinstance(transport, DrivenTransport):
        return None
    channel = transport.prepare(command, path, window, on_send)
    tune(channel)
    return channel


def await_opened(channel: paramiko.Channel) -> paramiko.Channel:
    """Return a prepared channel when it is open; raise what paramiko raises if it is not opened."""
    transport: Any = channel.get_transport()
    transport.await_opened(channel)
    return channel


def await_command(session: paramiko.Channel) -> None:
    """Wait until the host has started the command of a prepared session; raise what `exec_command` raises."""
    cast("Any", session)._wait_for_event()


def make_client(
    address: str, port: int, user: str, timeout_s: int, options: dict[str, Any]
) -> tuple[paramiko.SSHClient, Callable[[], object]]:
    """Return a client without host keys, and the function that connects it.

    Neither the user's SSH configuration nor configuration files of fabric are read.

    Args:
        address: Address of the host.
        port: TCP port of its SSH server.
        user: Login name.
        timeout_s: Longest time until the host accepts the connection, in seconds.
        options: Further arguments of paramiko.SSHClient.connect.
    """
    if is_proven():
        client = paramiko.SSHClient()

        def connect() -> None:
            sock = options["sock"] or take(address, port, timeout_s)
            client.connect(address, port, user, timeout=timeout_s, **{**options, "sock": sock})

        return client, connect
    from fabric import Config, Connection

    config = Config(lazy=True, ssh_config=paramiko.SSHConfig())  # lazy: without configuration files
    fabric = Connection(
        address, user=user, port=port, config=config, connect_timeout=timeout_s, connect_kwargs=options
    )
    return fabric.client, fabric.open


def tune(session: paramiko.Channel) -> None:
    """Let a session that has received nothing yet keep what arrives without copying it, and acknowledge it seldom.

    Paramiko copies received data three times, and a part of a buffer is removed by moving the rest. It acknowledges
    each tenth of the window, which is each packet of a small one.
    """
    if is_proven() and type(session.in_buffer) is BufferedPipe:
        session.in_buffer = ChunkBuffer(session.in_window_size)
        session.in_stderr_buffer = ChunkBuffer(session.in_window_size)
        session.in_window_threshold = session.in_window_size // 4


def drop_stderr(session: paramiko.Channel, kept: int) -> bool:
    """Keep only the last bytes that a session writes to stderr, at least `kept`, so that it never waits for a reader.

    Returns:
        Whether that is possible.
    """
    buffer: Any = session.in_stderr_buffer
    if not isinstance(buffer, ChunkBuffer) or not isinstance(session.get_transport(), DrivenTransport):
        return False
    reference = weakref.ref(session)  # the session has the buffer

    def acknowledge(size: int) -> None:
        private: Any = reference()
        if private is not None and (size := private._check_add_window(size)):
            message = paramiko.Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(private.remote_chanid)
            message.add_int(size)
            private.transport._send_user_message(message)

    buffer.drop(kept, acknowledge)
    return True


def watch(session: paramiko.Channel, on_input: Callable[[], object]) -> bool:
    """Call a function in the thread of the loop now, and whenever a session has received data or its end.

    Returns:
        Whether that is possible.
    """
    buffer: Any = session.in_buffer
    if not isinstance(buffer, ChunkBuffer) or not isinstance(session.get_transport(), DrivenTransport):
        return False
    buffer.on_input = on_input
    call_soon(on_input)
    return True


def call_soon(call: Callable[[], object]) -> None:
    """Call a function in the thread of the loop."""
    LOOP.call_soon(call)


def open_socket(transport: paramiko.Transport, path: str, window: int | None) -> paramiko.Channel:
    """Open a connection to a Unix socket of the host.

    paramiko.Transport.open_channel cannot send the fields of this kind of channel, and is repeated here with them.

    Args:
        transport: An authenticated transport.
        path: Absolute path of the socket.
        window: Bytes that the host may send before they are read; None: the default of the transport.

    Raises:
        ChannelException: the host does not connect to the socket; or it cannot be requested with this version of
            paramiko, with the code of a connection that is prohibited.
        SSHException: the connection broke.
    """
    if not is_proven():
        raise paramiko.ChannelException(OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED, "not with this version of paramiko")
    private: Any = transport
    with transport.lock:
        window_size, packet_size = private._sanitize_window_size(window), private._sanitize_packet_size(None)
        number = private._next_channel()
        channel: Any = paramiko.Channel(number)
        private._channels.put(number, channel)
        private.channel_events[number] = opened = Event()
        private.channels_seen[number] = True
        channel._set_transport(transport)
        channel._set_window(window_size, packet_size)
    tune(channel)  # the host may send at once
    private._send_user_message(opening_of_socket(channel, path))
    if transport.is_active():  # otherwise, it may have ended before it had the event
        opened.wait()  # also ends with the connection
    if private._channels.get(number) is channel and transport.is_active():
        return cast(paramiko.Channel, channel)
    raise transport.get_exception() or paramiko.SSHException("the connection was closed")


class ChunkBuffer(BufferedPipe):  # type: ignore[type-arg]
    """A BufferedPipe that keeps the chunks as they came.

    Args:
        window: Bytes that the other end may send before they are read. Paramiko does not enforce it.

    Attributes:
        on_input: Called when data has been added, and, in the thread of the loop, after the end of it.
    """

    _lock: Any
    _cv: Any
    _event: Any
    _closed: bool

    def __init__(self, window: int) -> None:
        super().__init__()
        self._limit = 2 * window  # an honest server stays below the half
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._kept: float = math.inf
        self._on_dropped: Callable[[int], None] = lambda _: None
        self.on_input: Callable[[], object] | None = None

    def close(self) -> None:
        """Add no more data; `read` returns the rest of it and then nothing."""
        super().close()
        if self.on_input is not None:  # later: the channel holds its lock
            call_soon(self.on_input)

    def drop(self, kept: int, on_dropped: Callable[[int], None]) -> None:
        """Drop the oldest chunks from now on, but keep at least `kept` bytes; report the size of what is dropped."""
        with self._lock:
            self._kept, self._on_dropped = kept, on_dropped
            dropped = self._drop()
        if dropped:
            on_dropped(dropped)

    def _drop(self) -> int:
        dropped = 0
        while self._chunks and self._size - len(self._chunks[0]) >= self._kept:
            dropped += len(self._chunks[0])
            self._size -= len(self._chunks.popleft())
        return dropped

    def feed(self, data: bytes) -> None:
        """Add received data.

        Raises:
            SSHException: the other end sends more than it may; paramiko then closes the connection.
        """
        if not data:  # costs nothing of the window, so that any number could wait here
            return
        with self._lock:
            if self._size + len(data) > self._limit:
                raise paramiko.SSHException("the host sent more than its receive window")
            if self._event is not None:
                self._event.set()
            self._chunks.append(data)
            self._size += len(data)
            dropped = self._drop()
            self._cv.notify_all()
        if dropped:
            self._on_dropped(dropped)
        if self.on_input is not None:
            self.on_input()

    def read_ready(self) -> bool:
        """Return True if a read returns data at once."""
        return self._size > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Return up to `nbytes` bytes; nothing at the end of the data.

        Raises:
            PipeTimeout: nothing arrived in time.
        """
        with self._lock:
            if not (self._size or self._closed):
                self._wait(timeout)
            data = self._take(nbytes)
            if not self._size and self._event is not None and not self._closed:
                self._event.clear()
            return data

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else monotonic() + timeout
        while not (self._size or self._closed):
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                raise PipeTimeout
            self._cv.wait(left)

    def _take(self, limit: int) -> bytes:
        taken: list[bytes] = []
        while limit > 0 and self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > limit:
                self._chunks.appendleft(chunk[limit:])
                chunk = chunk[:limit]
            taken.append(chunk)
            limit -= len(chunk)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._size -= len(data)
        return data

    def empty(self) -> bytes:
        """Return all data, and clear the buffer."""
        with self._lock:
            data = self._take(self._size)
            if self._event is not None and not self._closed:
                self._event.clear()
            return data

    def set_event(self, event: Any) -> None:
        """Set an event whenever there is data, or the end of it."""
        with self._lock:
            self._event = event
            if self._closed or self._size:
                event.set()
            else:
                event.clear()

    def __len__(self) -> int:
        return self._size
