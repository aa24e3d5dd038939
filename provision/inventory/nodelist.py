"""Nodes of an allocation as a batch system reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass

NODES_MAX = 100_000
"""More nodes than this in one list are taken for a mistake."""

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Node:
    """A node of an allocation.

    Attributes:
        name: Its name, as the batch system writes it.
        slots: Number of tasks that the batch system would start there, 1 or more.
    """

    name: str
    slots: int = 1


def is_node_name(text: str) -> bool:
    """Return True if `text` is a valid node name: letters, digits and ``.-_``, no hyphen or dot at the start."""
    return bool(_NAME.fullmatch(text))
