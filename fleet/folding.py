"""Names of hosts and tasks, sorted and folded."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TYPES = ("chief", "worker", "ps", "evaluator")


def order(name: str) -> tuple[int, str, int]:
    """Return the sort key of a task or host: by type, the chief first, and worker-2 before worker-10."""
    kind, _, index = name.rpartition("-")
    if not (index.isascii() and index.isdigit()):
        return (len(_TYPES), name, 0)
    return (_TYPES.index(kind) if kind in _TYPES else _TYPES.index("worker"), kind, int(index))


def fold(names: Iterable[str]) -> str:
    """Return names in order with their numbers folded: ``alpha, worker-[0-3,7]``; duplicates count once."""
    numbers: dict[str, list[int]] = {}
    for name in sorted(sorted(set(names)), key=order):
        match = re.fullmatch(r"(.*-)(0|[1-9][0-9]*)", name, re.ASCII | re.DOTALL)
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
        else:
            numbers.setdefault(name, [])
    return ", ".join(_fold_indexes(stem, indexes) for stem, indexes in numbers.items())


def _fold_indexes(stem: str, numbers: list[int]) -> str:
    if len(numbers) <= 1:
        return stem + "".join(map(str, numbers))
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return f"{stem}[{','.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)}]"
