"""Limits of what files and command lines can make this program do."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

TEXT_MAX = 10_000
"""Characters of a value; the longest that are useful are lists of hosts."""


class CpuLimitError(Exception):
    """A computation took too long."""


def check_text(text: str) -> str:
    """Return a value.

    Raises:
        ValueError: it is too long, or has control characters; the text begins with "must".
    """
    if len(text) > TEXT_MAX:
        raise ValueError(f"must have at most {TEXT_MAX:,} characters, and has {len(text):,}")
    if any((character < " " and character not in "\t\n") or character == "\x7f" for character in text):
        raise ValueError("must not contain control characters")
    return text


@contextlib.contextmanager
def limit_cpu(seconds: float) -> Iterator[None]:
    """Raise CpuLimitError if the block takes more CPU time; Python also interrupts a regular expression for it.

    Only the main thread receives signals; other threads have no time limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        raise CpuLimitError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)  # again, if the block suppressed the error
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
