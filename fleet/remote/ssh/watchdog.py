"""End calls of paramiko that would wait forever."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class _Alarms(threading.Thread):
    """Calls functions at their times; one thread for all connections."""

    def __init__(self) -> None:
        super().__init__(name="ssh-alarms", daemon=True)
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def call_at(self, time_s: float, call: Callable[[], object]) -> None:
        """Call a function at a time of the monotonic clock."""
        with self._changed:
            heapq.heappush(self._waiting, (time_s, next(self._numbers), call))
            if self.ident is None:
                self.start()
            self._changed.notify()

    def run(self) -> None:
        """Wait for the next time, and call its function."""
        while True:
            with self._changed:
                while not self._waiting or self._waiting[0][0] > time.monotonic():
                    wait_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                    self._changed.wait(wait_s)
                call = heapq.heappop(self._waiting)[2]
            call()


_ALARMS = _Alarms()


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
        _ALARMS.call_at(self._progressed_at + self._deadline_s, self._check)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._has_left = True

    def _check(self) -> None:
        with self._lock:
            if self._has_left:
                return
            if not self.is_over:
                _ALARMS.call_at(self._progressed_at + self._deadline_s, self._check)
                return
            self.fired = True
            self._sever()
