"""Find the address at which other hosts reach this host."""

_NOWHERE = ("192.0.2.1", 9)  # of RFC 5737, for documentation; no packet is sent there


def host_address(ssh_connection: str) -> str:
    """Return the address at which the SSH connection arrived, which is on this side of any NAT.

    Where only this host knows that one, the address of the interface on the way out; empty where there is none.

    Args:
        ssh_connection: The variable SSH_CONNECTION of sshd(8): the client's address and port, the server's.
    """
    words = ssh_connection.split()
    address = words[2] if len(words) == 4 else ""
    return address if address and not _is_private_to_host(address) else _outbound_address() or address


def _is_private_to_host(address: str) -> bool:
    """Return True if `address` is a loopback or link-local address."""
    return address.startswith(("127.", "169.254.", "fe80:")) or address == "::1"


def _outbound_address() -> str:
    import socket

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_NOWHERE)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
