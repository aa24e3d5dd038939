"""By which address the others of a start reach this node."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence

LOOPBACK = "127.0.0.1"
"""Where all of them are on one computer."""


def own_address(own: str, others: Sequence[str]) -> str:
    """The address from which this node reaches the first of the others; empty where none of them is known here.

    A node's own name is of no use for that: many look it up as a loopback address.

    Args:
        own: Name of this node.
        others: Names or addresses of all nodes; those that are `own` count as here.
    """
    return next((address for name in others if name != own for address in _ways(name)), "")


def _ways(name: str) -> Iterator[str]:
    """Own addresses of the ways to a node; nothing is sent."""
    try:
        result = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return
    for family, kind, number, _, target in result:
        try:
            with socket.socket(family, kind, number) as probe:
                probe.connect(target)
                address = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        if not ipaddress.ip_address(address).is_loopback:
            yield address
