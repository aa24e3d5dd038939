"""Determine the public addresses of this computer: a web service reports the address from which it was called.

If a proxy is set, the service is called through it and directly: SSH may use either way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
from urllib.request import getproxies

URL_VARIABLE = "FLEET_ADDRESS_URL"
"""Environment variable with the URL of a service to query instead of those below."""

_URLS = ("https://checkip.amazonaws.com", "https://ipv4.icanhazip.com")  # the second if the first does not respond
_DIRECT = {"http": "", "https": ""}
_TIMEOUT_S = 4.0
_LONGEST = 64


def public_addresses(*, local: bool = False) -> tuple[str, ...]:
    """Return the IPv4 addresses that other computers see as this computer's; empty if no service answers.

    Args:
        local: The instances are on this computer, as those of an emulator are.
    """
    url = os.environ.get(URL_VARIABLE, "")
    if local and not url:
        return ("127.0.0.1",)
    for service in [url] if url else _URLS:
        if addresses := tuple(dict.fromkeys(_query(service))):
            return addresses
    return ()


def _query(url: str) -> Iterator[str]:
    """Yield the address that a service reports, for each way to it."""
    ways: list[dict[str, str]] = [_DIRECT, {}] if getproxies() else [{}]
    for proxies in ways:
        text = _fetch(url, proxies)
        with contextlib.suppress(AddressValueError):
            yield str(IPv4Address(text))


def _fetch(url: str, proxies: dict[str, str]) -> str:
    import requests

    try:
        with requests.get(url, timeout=_TIMEOUT_S, allow_redirects=False, stream=True, proxies=proxies) as answer:
            if answer.status_code != requests.codes.ok:
                return ""
            return next(answer.iter_content(_LONGEST), b"").decode("ascii", "replace").strip()
    except (OSError, ValueError):  # errors of requests are OSErrors; ValueError: the URL is invalid
        return ""
