"""Numbers, durations, and amounts of money, as sentences need them."""

from __future__ import annotations

HOURS_PER_MONTH = 730.0
"""Hours of a month in prices of clouds."""


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
