"""Lengths of time as people type them."""

from __future__ import annotations

import math
import re

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(s|m|min|h|d)?", re.ASCII)


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``2h`` or ``1.5d``.

    Raises:
        ValueError: it is none of these, or more than a computer counts.
    """
    found = _DURATION.fullmatch(text.strip())
    value = float(found[1]) * _UNITS_S[found[2] or ""] if found else math.inf
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a duration; use seconds, 90s, 10m, or 2h")
    return value
