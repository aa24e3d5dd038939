"""Numbers with their nouns, as sentences need them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return ``1 file`` or ``12,000 files``.

    Args:
        count: How many.
        noun: In the singular; its plural must end in s.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
