"""Find the address at which the other nodes reach this node."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from train.agent.host.ports import address_on_route

LOOPBACK = "127.0.0.1"
"""Address if all processes are on one computer."""


def address_of_node(node: str, nodes: Sequence[str]) -> str:
    """Return the address from which this node reaches the first of the other nodes; empty if none can be resolved.

    The node's own name does not give the address: many nodes resolve it to a loopback address.

    Args:
        node: Name of this node.
        nodes: Names or addresses of all nodes; those equal to `node` are this node.
    """
    for name in nodes:
        try:
            targets = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM) if name != node else []
        except OSError:
            continue
        for family, _, _, _, target in targets:
            address = address_on_route(family, target)
            if address and not ipaddress.ip_address(address).is_loopback:
                return address
    return ""
