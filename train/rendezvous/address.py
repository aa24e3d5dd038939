"""Find the address at which the other nodes reach this node."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence

LOOPBACK = "127.0.0.1"
"""Address if all processes are on one computer."""


def own_address(node: str, nodes: Sequence[str]) -> str:
    """Return the address from which this node reaches the first of the other nodes; empty if none can be resolved.

    The node's own name does not give the address: many nodes resolve it to a loopback address.

    Args:
        node: Name of this node.
        nodes: Names or addresses of all nodes; those equal to `node` are this node.
    """
    return next((address for name in nodes if name != node for address in _local_addresses(name)), "")


def _local_addresses(name: str) -> Iterator[str]:
    """Yield this node's addresses on the routes to a node; nothing is sent."""
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
