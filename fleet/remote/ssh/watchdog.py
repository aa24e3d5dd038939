"""End calls of paramiko that would wait forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fleet.remote.ssh.loop import LOOP


class Watchdog:
    """Severs a connection if a block of code makes no progress before its deadline.

    Paramiko sends to a host without a deadline: when the buffers to a host that hangs are full, only shutting the
    socket down ends the wait.

    Args:
        sever: Ends the connection; called at most once, from another thread.
        deadline_s: Longest time without progress, in seconds.
    """

    def __init__(self, sever: Callable[[], None], deadline_s: float) -> None:
        self._sever = sever
        self._deadline_s = deadline_s
        self._progressed_at = time.monotonic()
        self._lock = threading.Lock()
        self._has_left = False
        self.fired = False

    def progressed(self) -> None:
        """Restart the deadline."""
        self._progressed_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() >= self._progressed_at + self._deadline_s

    def __enter__(self) -> Watchdog:
        self.progressed()
        self._timer = LOOP.call_at(self._progressed_at + self._deadline_s, self._check)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._has_left = True
        self._timer.cancel()

    def _check(self) -> None:
        with self._lock:
            if self._has_left:
                return
            ends_at = self._progressed_at + self._deadline_s
            if time.monotonic() < ends_at:
                self._timer = LOOP.call_at(ends_at, self._check)
                return
            self.fired = True
            self._sever()
