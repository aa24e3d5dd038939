"""Slurm's node expressions, ``gpu[01-03,7],login1``.

Expressions are read as by ``scontrol show hostnames``: the order is that of the expression, numbers padded with zeros
keep their width, and of several brackets the last one varies fastest, the others from the left. Words after a bracket
and steps, ``n[1-9/2]-ib``, are written by other cluster tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from provision.inventory.errors import InventoryError
from provision.inventory.nodelist import NODES_MAX, is_node_name

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*(?:/\s*(\d+)\s*)?)?", re.ASCII)
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_COMMA_OR_BRACKET = re.compile(r"\[[^\]]*\]|,")
_DIGITS_MAX = 18


def expand_nodelist(expression: str) -> tuple[str, ...]:
    """Return the names in an expression of SLURM_JOB_NODELIST, in its order; a repeated name counts once.

    Args:
        expression: ``gpu[01-03,7],login1``; brackets may follow each other, with words between and after them.

    Raises:
        InventoryError: it is malformed, or names no node.
    """
    if not expression.strip():
        raise InventoryError(
            "the node list is empty",
            cause="Slurm sets SLURM_JOB_NODELIST in the job",
            hint="run fleet inside an allocation of salloc or sbatch",
        )
    names: dict[str, None] = {}
    for word in _split(expression.strip()):
        for name in _expand(word.strip(), expression):
            if not is_node_name(name):
                raise _malformed(expression, f"{_short(name)} is not a valid node name")
            names[name] = None
        if len(names) > NODES_MAX:
            raise _malformed(expression, f"more than {NODES_MAX} nodes")
    return tuple(names)


def _split(expression: str) -> list[str]:
    """Return the parts of an expression between the commas outside brackets."""
    parts, start = [], 0
    for separator in _COMMA_OR_BRACKET.finditer(expression):
        if separator[0] == ",":
            parts.append(expression[start : separator.start()])
            start = separator.end()
    return [*parts, expression[start:]]


def _expand(word: str, expression: str) -> list[str]:
    """Return the names of a part between commas."""
    if not word:
        raise _malformed(expression, "a name is missing before or after a comma")
    pieces = _BRACKET.split(word)
    if any("[" in piece or "]" in piece for piece in pieces):
        raise _malformed(expression, f"unbalanced brackets in {_short(word)}")
    words, brackets = pieces[::2], pieces[1::2]
    choices: list[list[str]] = []
    count = 1
    for bracket in brackets:
        choices.append(_numbers(bracket, expression, NODES_MAX // count))
        count *= len(choices[-1])
    return [_joined(words, chosen) for chosen in _in_order(choices)]


def _in_order(choices: Sequence[list[str]]) -> list[tuple[str, ...]]:
    """Return every choice of one number for each bracket, in Slurm's order."""
    *outer, last = choices or [[""]]
    before = [tuple(reversed(chosen)) for chosen in product(*reversed(outer))]
    return [(*chosen, number) for chosen in before for number in last]


def _joined(words: Sequence[str], numbers: Sequence[str]) -> str:
    """Return words with a number after each of them except the last."""
    return "".join(part for pair in zip(words, [*numbers, ""], strict=False) for part in pair)


def _numbers(bracket: str, expression: str, limit: int) -> list[str]:
    """Return the numbers inside a bracket, at most `limit`."""
    numbers: list[str] = []
    for part in bracket.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or any(len(number or "") > _DIGITS_MAX for number in match.groups()):
            hint = (
                f"[{part.replace(':', '/')}]" if re.fullmatch(r"[\d-]{,40}:\d{,9}", part) else "[1-9] or [01,07-10]"
            )
            raise _malformed(
                expression, f"{_short(part)} in {_short(f'[{bracket}]')} is not a range", f"write ranges as {hint}"
            )
        first, last, step = match[1], match[2] or match[1], int(match[3] or "1")
        if step == 0 or int(last) < int(first):
            raise _malformed(expression, f"the range {part.strip()} in {_short(f'[{bracket}]')} is empty")
        values = range(int(first), int(last) + 1, step)
        if len(numbers) + len(values) > limit:
            raise _malformed(expression, f"more than {NODES_MAX} nodes")
        width = len(first) if first.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in values]
    return numbers


def _malformed(expression: str, why: str, hint: str = "") -> InventoryError:
    return InventoryError(f"invalid node list {_short(expression)}: {why}", hint=hint)


def _short(text: str) -> str:
    """Return text for a message, in quotes."""
    return repr(text if len(text) <= 60 else text[:57] + "…")
