"""End calls of paramiko that would wait forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Severs a connection if a block of code makes no progress before its deadline.

    Paramiko writes to a socket without a deadline: when the buffers to a host that hangs are full, only
    shutting the socket down ends the write.

    Args:
        sever: Ends the connection; called at most once, from another thread.
        deadline_s: Longest time without progress, in seconds.
    """

    def __init__(self, sever: Callable[[], None], deadline_s: float) -> None:
        self._sever = sever
        self._deadline_s = deadline_s
        self._progressed_at = 0.0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.fired = False

    def progressed(self) -> None:
        """Restart the deadline."""
        self._progressed_at = time.monotonic()

    def __enter__(self) -> Watchdog:
        self.progressed()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            left_s = self._progressed_at + self._deadline_s - time.monotonic()
            if left_s <= 0:
                self.fired = True
                self._sever()
                return
            if self._left.wait(left_s):
                return
