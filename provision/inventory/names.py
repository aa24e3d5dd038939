"""Host names as inventories write them: ranges, ports, IPv6 addresses.

``gpu[01:08:2].lab:2222`` is four hosts on port 2222. A numeric range keeps the width of its first number if that is
padded with zeros; an alphabetic range counts through a-z, then A-Z. Both ends are included. Several ranges are
combined; the last one varies fastest.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Callable
from itertools import product

HOSTS_MAX = 10_000
"""More hosts than this in one inventory are taken for a slip of the pen."""

_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BOUNDS = re.compile(r"(\d{0,18}|[a-z]):(\d{1,18}|[a-z])(?::(\d{1,18}))?", re.ASCII | re.IGNORECASE)
_WITH_PORT = re.compile(r"\[(?P<address>.+)\]:(?P<a>\d+)|(?P<name>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<b>\d+)")
_NAME = re.compile(r"\w[\w.-]{0,252}")
_WORD_MAX = 1000


def is_ipv6(text: str) -> bool:
    """Return True if `text` is an IPv6 address."""
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def is_host_name(text: str) -> bool:
    """Return True if SSH accepts `text` as a host: a name of letters, digits, ``.-_``, or an IP address."""
    return bool(_NAME.fullmatch(text)) or is_ipv6(text)


def is_port(text: str) -> bool:
    """Return True if `text` is the number of a TCP port."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def expand_host(text: str) -> tuple[list[str], int]:
    """Return the hosts of one word of an inventory, in their order, and their port.

    Args:
        text: ``gpu1``, ``gpu[1:3]``, ``10.0.0.1:2222``, ``[2001:db8::1]:22``, ``2001:db8::[1:4]``.

    Returns:
        Names, and the port, 0 if none is given.

    Raises:
        ValueError: it is malformed; the text is a clause for the user.
    """
    if len(text) > _WORD_MAX:
        raise ValueError(f"a name with {len(text):,} characters is not a valid host name or address")
    pattern, port = text, "0"
    if match := _WITH_PORT.fullmatch(text):
        pattern, port = match["address"] or match["name"], match["a"] or match["b"]
        if not is_port(port):
            raise ValueError(f"invalid port {port!r}; expected a number from 1 to 65535")
    names = ["".join(words) for words in product(*split_ranges(pattern, _range, HOSTS_MAX))]
    for name in names:
        if not is_host_name(name):
            raise ValueError(f"{name!r} is not a valid host name or address")
    return names, int(port)


def split_ranges(pattern: str, read: Callable[[str, int], list[str]], limit: int) -> list[list[str]]:
    """Return the choices for each part of a pattern: one between brackets, those of a range in brackets.

    Args:
        pattern: ``gpu[1:3]-ib``.
        read: Returns the words of a range, given without its brackets; at most a number of them.
        limit: Largest number of combinations.

    Raises:
        ValueError: the brackets are unbalanced, or from `read`; the text is a clause for the user.
    """
    pieces = _RANGE.split(pattern)
    if any("[" in piece or "]" in piece for piece in pieces):
        raise ValueError(f"unbalanced brackets in {pattern!r:.60}")
    choices: list[list[str]] = []
    for index, piece in enumerate(pieces):
        choices.append(read(piece, limit) if index % 2 else [piece])
        limit //= len(choices[-1])
    return choices


def _range(text: str, limit: int) -> list[str]:
    match = _BOUNDS.fullmatch(text)
    begin, end, step = (match[1] or "0", match[2], int(match[3] or "1")) if match else ("", "", 0)
    if not step or begin.isdigit() != end.isdigit():
        raise ValueError(f"the range [{text}] must be begin:end or begin:end:step, as in [1:3] or [a:e:2]")
    if begin.isdigit():
        width = len(begin) if len(begin) > 1 and begin.startswith("0") else 0
        if width and width != len(end):
            raise ValueError(f"the range [{text}] is padded with zeros; both ends must have the same length")
        words = [str(number).zfill(width) for number in range(int(begin), int(end) + 1, step)[: limit + 1]]
    else:
        letters = string.ascii_letters
        words = list(letters[letters.index(begin) : letters.index(end) + 1 : step])
    if not words:
        raise ValueError(f"the range [{text}] is empty: it ends before it begins")
    if len(words) > limit:
        raise ValueError(f"the range [{text}] has more than {HOSTS_MAX} hosts")
    return words
