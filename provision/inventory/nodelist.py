"""Nodes of an allocation as a batch system reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.provider import ErrorKind, ProviderError

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


class NodelistError(ProviderError):
    """A list of nodes is malformed; nothing was started.

    Args:
        message: What is wrong, for the user.
        cause: Cause, if known.
        hint: What to change, one sentence.
        next_step: Commands that can be pasted into a shell, one a line.
    """

    def __init__(self, message: str, *, cause: str = "", hint: str = "", next_step: str = "") -> None:
        super().__init__(ErrorKind.USAGE, message, cause=cause, hint=hint, next_step=next_step)


def is_node_name(text: str) -> bool:
    """Return True if `text` is a valid node name: letters, digits and ``.-_``, no hyphen or dot at the start."""
    return bool(_NAME.fullmatch(text))
