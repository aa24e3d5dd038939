"""Find the address of this host, and reserve the ports of a task's TensorFlow server and of the agents' connections.

TensorFlow's gRPC server binds all addresses seconds after the task has started, and by then the agent must have
closed the port. Until then an abstract Unix socket reserves the port against other agents on the same host: it
belongs to the network namespace, as the port does, and vanishes with its owner.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any, List, Optional, Tuple

from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

PORTS_TRIED = 1000
_TAKEN = (errno.EADDRINUSE,)
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_AF_INET = 2
_NOWHERE = ("192.0.2.1", 9)  # of RFC 5737, for documentation; no packet is sent there
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
    with contextlib.suppress(socket.gaierror):
        family = socket.getaddrinfo(address, 0, flags=socket.AI_NUMERICHOST)[0][0]
        target = address
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


def host_address(ssh_connection: str) -> str:
    """Return the address at which the SSH connection arrived, which is on this side of any NAT.

    If that address is valid on this host only, return that of the interface on the way out; empty if there is none.

    Args:
        ssh_connection: The variable SSH_CONNECTION of sshd(8): the client's address and port, the server's.
    """
    words = ssh_connection.split()
    address = words[2] if len(words) == 4 else ""
    return (
        address if address and not _is_private_to_host(address) else address_on_route(_AF_INET, _NOWHERE) or address
    )


def _is_private_to_host(address: str) -> bool:
    """Return True if `address` is a loopback or link-local address."""
    return address.startswith(("127.", "169.254.", "fe80:")) or address == "::1"


def address_on_route(family: int, target: Tuple[Any, ...]) -> str:
    """Return this host's address on the route to a socket address; empty without a route. Nothing is sent."""
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return ""
    try:
        probe.connect(target)
        return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""
    finally:
        probe.close()
