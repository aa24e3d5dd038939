"""Host names as inventories write them: ranges, ports, IPv6 addresses.

``gpu[01:08:2].lab:2222`` is four hosts on port 2222. A numeric range keeps the width of its first number if that is
padded with zeros; an alphabetic range counts through a-z, then A-Z. Both ends are included. Several ranges are
combined; the last one varies fastest.
"""

from __future__ import annotations

import ipaddress
import re
import string
from itertools import product

HOSTS_MAX = 10_000
"""More hosts than this in one inventory are taken for a slip of the pen."""

_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BOUNDS = re.compile(r"(\d{0,18}|[a-z]):(\d{1,18}|[a-z])(?::(\d{1,18}))?", re.ASCII | re.IGNORECASE)
_LETTERS = string.ascii_letters
_BRACKETED = re.compile(r"\[(.*)\]:(\d+)")
_NAME = re.compile(r"\w[\w.-]{0,252}")
_WORD_MAX = 1000


def is_host_name(text: str) -> bool:
    """Return True if SSH accepts `text` as a host: a name of letters, digits, ``.-_``, or an IP address."""
    return bool(_NAME.fullmatch(text)) or is_ipv6(text)


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
    pattern, port = _split_port(text) if _is_balanced(text) else (text, 0)
    names = _expand(pattern)
    for name in names:
        if not is_host_name(name):
            raise ValueError(f"{name!r} is not a valid host name or address")
    return names, port


def _expand(pattern: str) -> list[str]:
    """Return all words of `pattern`, in their order.

    Raises:
        ValueError: a range is malformed, empty, or too large; the text is a clause for the user.
    """
    if not _is_balanced(pattern):
        raise ValueError(f"unbalanced brackets in {pattern!r}")
    choices: list[list[str]] = []
    count = 1
    for index, piece in enumerate(_RANGE.split(pattern)):
        choices.append(_range(piece, HOSTS_MAX // count) if index % 2 else [piece])
        count *= len(choices[-1])
    return ["".join(words) for words in product(*choices)]


def _split_port(text: str) -> tuple[str, int]:
    """Return the pattern and port of a word; the port is 0 if it has none."""
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed and "]" not in _RANGE.sub("", bracketed[1]) and _RANGE.sub("", bracketed[1]).count(":") > 1:
        return bracketed[1], _port(bracketed[2])
    colons = _RANGE.sub("", text).count(":")
    if colons == 0 or (colons > 1 and not text.startswith("[")):
        return text, 0
    pattern, _, port = text.rpartition(":")
    if _RANGE.fullmatch(pattern):
        raise ValueError(f"{pattern[1:-1]!r} in brackets is not an address")
    if colons > 1:
        raise ValueError(f"{text!r} is not an address, nor a name with a port")
    return pattern, _port(port)


def _is_balanced(text: str) -> bool:
    """Return True if every bracket is closed; a range may be inside an address in brackets."""
    return not set(_RANGE.sub("", _RANGE.sub("", text))) & set("[]")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise ValueError(f"invalid port {text!r}; expected a number from 1 to 65535")
    return int(text)


def _range(text: str, limit: int) -> list[str]:
    """Return the words of the range `text`, given without its brackets; at most `limit`."""
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
        words = list(_LETTERS[_LETTERS.index(begin) : _LETTERS.index(end) + 1 : step])
    if not words:
        raise ValueError(f"the range [{text}] is empty: it ends before it begins")
    if len(words) > limit:
        raise ValueError(f"the range [{text}] has more than {HOSTS_MAX} hosts")
    return words


def is_ipv6(text: str) -> bool:
    """Return True if `text` is an IPv6 address."""
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
