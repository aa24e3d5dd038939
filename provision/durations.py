"""Durations as users type them."""

from __future__ import annotations

import math
import re

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(s|m|min|h|d)?", re.ASCII)


def seconds(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``10m``, ``2h`` or ``1.5d``.

    Raises:
        ValueError: `text` is not a duration, or the number is infinite.
    """
    match = _DURATION.fullmatch(text.strip())
    value = float(match[1]) * _UNITS_S[match[2] or ""] if match else math.inf
    if not math.isfinite(value):
        raise ValueError(f"invalid duration {text!r}; use seconds, 90s, 10m, or 2h")
    return value


def format_duration(value_s: float) -> str:
    """Return ``8h``, ``90m`` or ``45s``, the largest unit that divides the duration."""
    for unit, size_s in (("h", 3600), ("m", 60)):
        if value_s and value_s % size_s == 0:
            return f"{value_s / size_s:g}{unit}"
    return f"{value_s:g}s"
