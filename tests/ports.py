"""Reserve TCP ports for programs that listen on them later."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a socket that keeps a free port of an address from all other programs, while it is open.

    A server with SO_REUSEADDR, which `socket.create_server` and sshd set, can listen on the port, because the socket
    does not listen. The kernel gives the port neither to a program that asks for any free port nor to a connection; a
    client that tries to connect to an unreserved port before its server listens can even be connected to itself.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return reserved


@contextlib.contextmanager
def reserved_port(address: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a free port of an address; see `reserve_port`."""
    with reserve_port(address) as reserved:
        yield int(reserved.getsockname()[1])
