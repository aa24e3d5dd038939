"""Kinds of results, as users name them."""

from __future__ import annotations

from difflib import get_close_matches

from fleet.errors import UsageError
from train.agent.protocol.records import Area

KINDS = tuple(area.value for area in Area)
"""Names of the kinds, as `fleet pull --what` takes them and JSON events report them."""


def parse_kinds(text: str) -> tuple[Area, ...]:
    """Return the kinds that a list between commas names; empty: all kinds.

    Raises:
        UsageError: a name is unknown; the nearest one is named.
    """
    names = [name.strip().lower() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in KINDS:
            close = get_close_matches(name, KINDS, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"{name!r} is not a kind of results", hint=f"{meant}--what takes {', '.join(KINDS)} between commas"
            )
    return tuple(area for area in Area if area.value in names)
