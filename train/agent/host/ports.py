"""Reserve the port of a task's TensorFlow server, and the one for the connections of the agents.

TensorFlow's gRPC server binds all addresses seconds after the task has started, and by then the agent must have
closed the port. Until then an abstract Unix socket reserves the port against other agents on the same host: it
belongs to the network namespace, as the port does, and vanishes with its owner.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import List, Optional

from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

PORTS_TRIED = 1000
_TAKEN = (errno.EADDRINUSE,)
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_BACKLOG = 1024  # who asks before the supervisor can answer waits here


class TaskPort:
    """A reserved port.

    Args:
        port: Its number.
        name: The abstract socket that reserves the port against other agents.
        hold: The listening socket that keeps everybody else off.
    """

    def __init__(self, port: int, name: socket.socket, hold: socket.socket) -> None:
        self.port = port
        self._name = name
        self._hold: Optional[socket.socket] = hold

    @property
    def listener(self) -> socket.socket:
        """Return the socket that listens on the port until it is yielded.

        Raises:
            ValueError: it is.
        """
        if self._hold is None:
            raise ValueError(f"port {self.port} is the task's")
        return self._hold

    def yield_to_task(self) -> None:
        """Let the task bind the port; other agents still cannot reserve it."""
        if self._hold is not None:
            # A process that was forked a moment ago may not have closed its copy yet, which would still listen.
            with contextlib.suppress(OSError):
                self._hold.shutdown(socket.SHUT_RDWR)
        self._close()

    def descriptors(self) -> List[int]:
        """Return the file descriptors that hold the reservation."""
        held = [self._name.fileno()]
        return held if self._hold is None else [*held, self._hold.fileno()]

    def release(self) -> None:
        """Release the port in this process."""
        self._close()
        self._name.close()

    def _close(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None


def _claim_name(port: int) -> Optional[socket.socket]:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0fleet-port-{port}")
    except OSError:
        name.close()
        return None
    return name


def _listen_everywhere(family: int, address: str, port: int) -> socket.socket:
    # Without listening nothing would keep off others who set SO_REUSEADDR, and gRPC does.
    hold = socket.socket(family, socket.SOCK_STREAM)
    try:
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            hold.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        hold.bind((address, port))
        hold.listen(_BACKLOG)
    except OSError:
        hold.close()
        raise
    return hold


def _hold(port: int) -> Optional[socket.socket]:
    try:
        try:
            hold = _listen_everywhere(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            hold = _listen_everywhere(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - what TensorFlow will bind
    except OSError as error:
        if error.errno in _TAKEN:
            return None
        raise RefusedError(
            Refusal.PORT, f"port {port} cannot be bound: {error.strerror}", "choose a port from 1024 on"
        ) from error
    return hold


def reserve_task_port(first: int) -> TaskPort:
    """Reserve `first`, or the next free port after it.

    Raises:
        RefusedError: none of the next 1000 is free, or the port may not be bound.
    """
    last = min(first + PORTS_TRIED, 65536) - 1
    if not 0 < first <= last:
        raise RefusedError(Refusal.REQUEST, f"invalid port {first}", "choose a port from 1024 to 65535")
    for port in range(first, last + 1):
        name = _claim_name(port)
        if name is None:
            continue
        try:
            hold = _hold(port)
        except RefusedError:
            name.close()
            raise
        if hold is not None:
            return TaskPort(port, name, hold)
        name.close()
    raise RefusedError(Refusal.PORT, f"no port from {first} to {last} is free on this host")


def listen_for_links(address: str) -> socket.socket:
    """Return a listening socket on a free port of `address`; on all addresses if `address` is a name.

    A name is not looked up here: many hosts map their own name to a loopback address.

    Raises:
        RefusedError: this host does not have the address.
    """
    family, target = socket.AF_INET, ""
    for candidate in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(candidate, address)
        except OSError:
            continue
        family, target = candidate, address
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((target, 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        reason = f"this host cannot listen on {address}: {error.strerror}"
        raise RefusedError(Refusal.PORT, reason, "check the host's private address in the inventory") from error
    listener.setblocking(False)
    return listener
