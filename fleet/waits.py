"""Name what a command waits for, if it waits for more than a moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

ANNOUNCE_S = 1.5


@contextlib.contextmanager
def announce(report: Callable[[str], None], describe: Callable[[], str]) -> Iterator[None]:
    """Report what the block waits for, once, if it takes longer than ANNOUNCE_S."""
    timer = threading.Timer(ANNOUNCE_S, lambda: report(describe()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
