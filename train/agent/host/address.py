"""Find the address at which other hosts reach this host."""

from __future__ import annotations

import socket
from typing import Any, Tuple

_AF_INET = 2
_NOWHERE = ("192.0.2.1", 9)  # of RFC 5737, for documentation; no packet is sent there


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
