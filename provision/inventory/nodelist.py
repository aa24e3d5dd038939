"""Names of nodes as batch systems write them."""

from __future__ import annotations

import re

NODES_MAX = 100_000
"""More nodes than this in one list are taken for a mistake."""

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


def is_node_name(text: str) -> bool:
    """Return True if `text` is a valid node name: letters, digits and ``.-_``, no hyphen or dot at the start."""
    return bool(_NAME.fullmatch(text))
