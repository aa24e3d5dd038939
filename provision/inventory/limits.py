"""Selects the hosts of an inventory that a limit names.

Patterns are separated by commas or colons: a group, a host, a wildcard, ``~`` and a regular expression; ``group[0]``,
``group[-1]`` and ``group[0:2]`` are hosts by their position, both ends included. ``&`` keeps only the hosts of a
pattern, and ``!`` removes them, in any order.
"""

from __future__ import annotations

import difflib
import fnmatch
import re

from provision.bounds import CpuLimitError, limit_cpu
from provision.inventory.files import InventoryError
from provision.inventory.groups import Groups
from provision.inventory.names import is_ipv6

_MATCH_S = 1.0  # of CPU time
_SEPARATOR = re.compile(r"[:\s](?![^\[]*\])")
_POSITION = re.compile(r"([^~].*)\[(?:(-?\d+)|(\d+)[:-](\d*))\]", re.ASCII)


def select(groups: Groups, limit: str) -> list[str]:
    """Return the hosts that `limit` names, in the order of the inventory; all of them if it is empty.

    Raises:
        InventoryError: a pattern is malformed, takes too long, or names nothing, or no host is left.
    """
    try:
        with limit_cpu(_MATCH_S):
            return _select(groups, limit)
    except CpuLimitError as error:
        raise InventoryError(f"--limit {limit!r:.200} cannot be evaluated: {error}", hint="simplify it") from None


def _select(groups: Groups, limit: str) -> list[str]:
    patterns = _split(limit)
    plain = [pattern for pattern in patterns if pattern[0] not in "&!"] or ["all"]
    chosen = {host for pattern in plain for host in _named(groups, pattern)}
    for pattern in patterns:
        if pattern[0] == "&":
            chosen &= set(_named(groups, pattern[1:]))
    for pattern in patterns:
        if pattern[0] == "!":
            chosen -= set(_named(groups, pattern[1:]))
    if chosen:
        return [host for host in groups.members("all") if host in chosen]
    if not patterns:
        raise InventoryError("the inventory has no hosts")
    if limit in groups:
        raise InventoryError(f"group {limit!r} has no hosts")
    raise InventoryError(f"--limit {limit!r} selects no host")


def _split(limit: str) -> list[str]:
    """Return the patterns of a limit, none of them empty.

    Raises:
        InventoryError: a pattern is malformed.
    """
    words: list[str] = []
    for word in map(str.strip, limit.split(",")):
        words += [word] if is_ipv6(word.lstrip("&!")) else _SEPARATOR.split(word)
    for pattern in words:
        if pattern.startswith("@"):
            hint = "give hosts and groups, separated by commas"
            raise InventoryError(f"files are not supported in --limit: {pattern!r}", hint=hint)
        if pattern and not pattern.lstrip("&!~"):
            raise InventoryError(f"{pattern!r} in --limit {limit!r} requires a name")
    return [word for word in words if word]


def _named(groups: Groups, pattern: str) -> list[str]:
    """Return the hosts that one pattern names, with repetitions."""
    match = _POSITION.fullmatch(pattern)
    if match is None:
        return _matching(groups, pattern)
    hosts = _matching(groups, match[1])
    if match[2] is None:
        chosen = hosts[int(match[3]) : int(match[4]) + 1 if match[4] else None]
    else:
        index = int(match[2])
        chosen = hosts[index:][:1] if -len(hosts) <= index < len(hosts) else []
    if not chosen:
        raise InventoryError(f"--limit {pattern!r} selects no host: {match[1]!r} has {len(hosts)}, counted from 0")
    return chosen


def _matching(groups: Groups, pattern: str) -> list[str]:
    is_expression = pattern.startswith("~")
    try:
        expression = re.compile(pattern[1:] if is_expression else fnmatch.translate(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise InventoryError(f"--limit {pattern!r} is not a regular expression: {error}") from None
    named = [name for name in groups if expression.match(name)]
    hosts = [host for name in named for host in groups.members(name)]
    if not named or is_expression or any(sign in pattern for sign in ".?*["):
        hosts += [host for host in groups.hosts if expression.match(host)]
    if not named and not hosts:
        close = difflib.get_close_matches(pattern, [*groups, *groups.hosts][:1000], n=1)
        message = f"--limit {pattern!r} is not a group or host of the inventory"
        raise InventoryError(message, hint=f"did you mean {close[0]!r}?" if close else "")
    return hosts
