"""Numbers, durations, and amounts of money, as users type them and as sentences need them."""

from __future__ import annotations

import math
import re

HOURS_PER_MONTH = 730.0
"""Hours of a month in prices of clouds."""
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(s|m|min|h|d)?", re.ASCII)


def counted(count: int, noun: str) -> str:
    """Return ``1 file`` or ``12,000 files``.

    Args:
        count: How many.
        noun: In the singular; its plural must end in s.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_span(seconds: float) -> str:
    """Format a duration with one or two units: ``42 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    total = max(0, int(seconds))
    if total < 60:
        return f"{total} s"
    for large, small, large_s, small_s in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if total >= large_s:
            rest = total % large_s // small_s
            return f"{total // large_s} {large}" + (f" {rest} {small}" if rest else "")
    return f"{total // 60} min"


def format_money(dollars: float) -> str:
    """Format US dollars: ``$0.07``; ``<$0.01`` for a smaller amount above zero."""
    return "<$0.01" if 0 < dollars < 0.005 else f"${dollars:,.2f}"


def read_duration(text: str) -> float:
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
