"""A socket that bounds what an SSH server can make this program keep; paramiko bounds neither packets nor buffers."""

from __future__ import annotations

import errno
import socket
import threading
import time

import paramiko

WINDOW = 16 * 1024 * 1024
"""Largest receive window in bytes: 16 MiB fill 1 Gb/s at a round-trip time of 100 ms."""

_WINDOWS = 8 * 1024 * 1024  # of all hosts that a command reads at the same time
_LEAST_WINDOW = 64 * 1024
_LOGIN_MAX = 256 * 1024  # bytes before the login succeeds; with OpenSSH they are about 5 KiB and the banner
_REFUSAL_MAX = 64  # bytes; a server that accepts the connection sends more before it can close it
_PACKETS_MAX = 512 * 1024  # bytes in a period of which none reaches a session: four packets, or 300 key exchanges
_PERIOD_S = 60.0  # OpenSSH exchanges keys once an hour, or after some data


def share_window(hosts: int) -> int:
    """Return the receive window of each of several hosts, so that what waits for a slow reader stays bounded."""
    return WINDOW if hosts <= 1 else max(_LEAST_WINDOW, _WINDOWS // hosts)


class GuardedSocket(socket.socket):
    """A connected socket whose `recv` fails if the server sends more than it may.

    Args:
        connected: The socket to take over.
        window: Bytes that a session may receive before they are read.
    """

    def __init__(self, connected: socket.socket, window: int) -> None:
        super().__init__(fileno=connected.detach())
        self._limit = 2 * window  # an honest server stays below the half
        self._session: paramiko.Channel | None = None
        self._is_open = False
        self._lock = threading.Lock()
        self._read = 0
        self._reached = 0  # bytes that had reached the session when the last of them did
        self._since = 0  # bytes received since then, at most in the last period
        self._period_ends = 0.0

    @property
    def is_refused(self) -> bool:
        """Return whether the server has sent at most a short line, such as ``Exceeded MaxStartups``."""
        return not self._is_open and self._since < _REFUSAL_MAX

    def allow_sessions(self) -> None:
        """The login has succeeded."""
        self._is_open = True
        self._since = 0

    def watch(self, session: paramiko.Channel) -> None:
        """Bound what a session keeps."""
        self._session = session

    def has_read(self, size: int) -> None:
        """Count bytes that were read from the session."""
        with self._lock:
            self._read += size

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive data.

        Raises:
            OSError: the server has sent more than it may.
        """
        data = super().recv(size, flags)
        if self._is_open and time.monotonic() > self._period_ends:
            self._since, self._period_ends = 0, time.monotonic() + _PERIOD_S
        self._since += len(data)
        kept = 0
        if self._session is not None:
            kept = len(self._session.in_buffer) + len(self._session.in_stderr_buffer)
            with self._lock:
                reached = self._read + kept
            if reached != self._reached:
                self._reached, self._since = reached, len(data)
        if kept > self._limit or self._since > (_PACKETS_MAX if self._is_open else _LOGIN_MAX):
            self.shutdown(socket.SHUT_RDWR)
            raise OSError(errno.EPROTO, "the host sent more data than it may")  # paramiko reads both arguments
        return data
