"""Begin to connect to hosts while the modules that use the connections are imported."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from provision.model import Host

_MOST = 128  # connections that wait at the same time for their users
_ALLOWED = (0, errno.EINPROGRESS)

_GREETING_S = 10.0
_POLL_MS = 50

VERSION = "SSH-2.0-fleet"
"""The version that this program sends to SSH servers (RFC 4253, section 4.2)."""


class DialedSocket(socket.socket):
    """A socket that `dialing` connects.

    Attributes:
        is_greeted: Whether the version was sent, to which an SSH server answers with its algorithms.
    """

    is_greeted = False


_Place = tuple[str, int]
_PENDING: dict[_Place, list[DialedSocket]] = {}
_LOCK = threading.Lock()


@contextlib.contextmanager
def dialing(hosts: Sequence[Host]) -> Iterator[None]:
    """Begin to connect to hosts that are reached directly by an IP address; close those that are not taken.

    Without this, `take` returns nothing, and its callers connect by themselves.
    """
    dialed: list[tuple[_Place, DialedSocket]] = []
    try:
        for host in hosts[:_MOST]:
            sock = None if host.proxy else _dial(host.address, host.port)
            if sock is not None:
                place = (host.address, host.port)
                dialed.append((place, sock))
                with _LOCK:
                    _PENDING.setdefault(place, []).append(sock)
        threading.Thread(target=_greet, args=(dialed,), name="greeting", daemon=True).start()
        yield
    finally:
        for place, sock in dialed:
            if _remove(place, sock):
                sock.close()


def take(address: str, port: int, timeout_s: float) -> DialedSocket | None:
    """Return a connection that `dialing` began, when it is open; None if there is none, or if it failed.

    Raises:
        TimeoutError: it does not open in time.
    """
    with _LOCK:
        waiting = _PENDING.get((address, port))
        sock = waiting.pop() if waiting else None
    if sock is None:
        return None
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(sock, select.POLLOUT)
    is_over = bool(poll.poll(timeout_s * 1000))
    if is_over and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
        return sock
    sock.close()
    if not is_over:
        raise TimeoutError("timed out")
    return None


def _dial(address: str, port: int) -> DialedSocket | None:
    """Return a socket that connects; None for a name, which would have to be resolved first."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        sock = DialedSocket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    sock.setblocking(False)
    try:
        if sock.connect_ex((address, port)) in _ALLOWED:
            return sock
    except OSError:  # of an address that the system does not have
        pass
    sock.close()
    return None


def _greet(dialed: Sequence[tuple[_Place, DialedSocket]]) -> None:
    """Send the version on each connection as soon as it is open, unless its user has taken it."""
    waiting = list(dialed)
    until = time.monotonic() + _GREETING_S
    while time.monotonic() < until:
        with _LOCK:
            waiting = [(place, sock) for place, sock in waiting if sock in _PENDING.get(place, ())]
            poll = select.poll()
            for _, sock in waiting:
                poll.register(sock, select.POLLOUT)
        if not waiting:
            return
        ready = {number for number, _ in poll.poll(_POLL_MS)}
        with _LOCK:
            for place, sock in [each for each in waiting if each[1].fileno() in ready]:
                waiting.remove((place, sock))
                _send_version(place, sock)


def _send_version(place: _Place, sock: DialedSocket) -> None:
    """Send the version on a connection that is not taken; give up a connection that failed."""
    if sock not in _PENDING.get(place, ()):
        return
    try:
        sock.send(f"{VERSION}\r\n".encode())
        sock.is_greeted = True
    except OSError:
        _PENDING[place].remove(sock)
        sock.close()


def _remove(place: _Place, sock: DialedSocket) -> bool:
    with _LOCK:
        waiting = _PENDING.get(place, [])
        if sock not in waiting:
            return False
        waiting.remove(sock)
        if not waiting:
            del _PENDING[place]
        return True
