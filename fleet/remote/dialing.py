"""Begin to connect to hosts while the modules that use the connections are imported."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
from collections.abc import Iterator, Sequence

from provision.model import Host

_MOST = 128  # connections that wait at the same time for their users
_ALLOWED = (0, errno.EINPROGRESS)

_PENDING: dict[tuple[str, int], list[socket.socket]] = {}
_LOCK = threading.Lock()


@contextlib.contextmanager
def dialing(hosts: Sequence[Host]) -> Iterator[None]:
    """Begin to connect to hosts that are reached directly by an IP address; close those that are not taken.

    Without this, `take` returns nothing, and its callers connect by themselves.
    """
    dialed: list[tuple[tuple[str, int], socket.socket]] = []
    try:
        for host in hosts[:_MOST]:
            sock = None if host.proxy else _dial(host.address, host.port)
            if sock is not None:
                place = (host.address, host.port)
                dialed.append((place, sock))
                with _LOCK:
                    _PENDING.setdefault(place, []).append(sock)
        yield
    finally:
        for place, sock in dialed:
            if _remove(place, sock):
                sock.close()


def take(address: str, port: int, timeout_s: float) -> socket.socket | None:
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


def _dial(address: str, port: int) -> socket.socket | None:
    """Return a socket that connects; None for a name, which would have to be resolved first."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        sock = socket.socket(family, socket.SOCK_STREAM)
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


def _remove(place: tuple[str, int], sock: socket.socket) -> bool:
    with _LOCK:
        waiting = _PENDING.get(place, [])
        if sock not in waiting:
            return False
        waiting.remove(sock)
        if not waiting:
            del _PENDING[place]
        return True
