"""Limit the cost of connections that have not authenticated."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from typing import Any, Optional, Tuple

_MOST = 64
_LEAST = 8
_DIVISOR = 8  # at most one of this many descriptors of the process belongs to an unauthenticated peer


def max_unauthenticated(expected: int) -> int:
    """Return the number of unproven connections that one listener holds at a time.

    Args:
        expected: Number of true participants, all of which may connect at the same moment.
    """
    return max(_LEAST, min(expected + _MOST, (descriptor_limit() - expected) // _DIVISOR))


def descriptor_limit() -> int:
    """Return how many file descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Acceptor:
    """Accept connections, even when the process has no file descriptor left.

    A listener with a waiting connection stays readable, so a loop that cannot accept would run without a pause. One
    descriptor is kept in reserve to accept that connection and close it.

    Args:
        listener: Non-blocking; stays open when this is closed.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._reserve = _open_reserve()

    def accept(self) -> Optional[Tuple[socket.socket, Any]]:
        """Return the next connection, non-blocking, and its address; None if there is none."""
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away()
            return None
        connection.setblocking(False)
        return connection, address

    def close(self) -> None:
        """Close the reserve descriptor; repeated calls do nothing."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _turn_away(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        self._reserve = _open_reserve()


def _open_reserve() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
