"""Determine the public addresses of this computer.

Two independent sources are queried at the same time: a name server of Google over UDP, and a web service over HTTPS,
which also works if external DNS is blocked or a proxy is required. They can differ because of a VPN for part of the
traffic, a proxy, or several addresses of one connection. Then both addresses belong to this computer.
"""

from __future__ import annotations

import os
import threading
from ipaddress import AddressValueError, IPv4Address

URL_VARIABLE = "FLEET_ADDRESS_URL"
"""Environment variable with the URL of a service to query instead of the sources below."""

# Answers a query for the name below with the address of the client.
_SERVER = "ns1.google.com"
_NAME = "o-o.myaddr.l.google.com"
# Answers with the address of the client, as text.
_URL = "https://checkip.amazonaws.com"
_TIMEOUT_S = 4.0
_LONGEST = 64


def public_addresses(*, local: bool = False) -> tuple[str, ...]:
    """Return the IPv4 addresses that other computers see as this computer's; empty if no source answers.

    Args:
        local: The instances are on this computer, as those of an emulator are.
    """
    import dns.query  # noqa: F401 - imported by one thread only
    import requests  # noqa: F401

    url = os.environ.get(URL_VARIABLE, "")
    if local and not url:
        return ("127.0.0.1",)
    if url:
        answers = [_by_https(url)]
    else:
        dns_answers: list[str] = []
        thread = threading.Thread(target=lambda: dns_answers.append(_by_dns()), daemon=True)
        thread.start()
        by_https = _by_https(_URL)
        thread.join(2 * _TIMEOUT_S)
        answers = [*dns_answers, by_https]
    return tuple(dict.fromkeys(answer for answer in answers if _is_ipv4(answer)))


def _by_dns() -> str:
    import socket

    import dns.exception
    import dns.message
    import dns.query
    import dns.rdatatype

    try:
        addresses = socket.getaddrinfo(_SERVER, 53, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        server = str(addresses[0][4][0])
        answer = dns.query.udp(dns.message.make_query(_NAME, dns.rdatatype.TXT), server, timeout=_TIMEOUT_S)
    except (OSError, dns.exception.DNSException):
        return ""
    texts = [text.decode("ascii", "replace") for entry in answer.answer for item in entry for text in item.strings]
    return next((text for text in texts if _is_ipv4(text)), "")


def _by_https(url: str) -> str:
    import requests

    try:
        with requests.get(url, timeout=_TIMEOUT_S, allow_redirects=False, stream=True) as answer:
            if answer.status_code != requests.codes.ok:
                return ""
            return next(answer.iter_content(_LONGEST), b"").decode("ascii", "replace").strip()
    except (OSError, ValueError):  # errors of requests are OSErrors; ValueError: the URL is invalid
        return ""


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
