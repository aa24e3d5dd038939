"""The public address from which this computer calls."""

from __future__ import annotations

# Answers a question for the name below with the address that asked.
SERVER = "ns1.google.com"
NAME = "o-o.myaddr.l.google.com"
TIMEOUT_S = 4.0


def public_address() -> str:
    """The IPv4 address that the Internet sees of this computer; empty where nobody could tell."""
    import socket

    import dns.exception
    import dns.message
    import dns.query
    import dns.rdatatype

    try:
        found = socket.getaddrinfo(SERVER, 53, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        server = str(found[0][4][0])
        answer = dns.query.udp(dns.message.make_query(NAME, dns.rdatatype.TXT), server, timeout=TIMEOUT_S)
    except (OSError, dns.exception.DNSException):
        return ""
    texts = [text.decode("ascii", "replace") for entry in answer.answer for item in entry for text in item.strings]
    return next((text for text in texts if _is_ipv4(text)), "")


def _is_ipv4(text: str) -> bool:
    from ipaddress import AddressValueError, IPv4Address

    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
