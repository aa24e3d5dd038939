"""The emulator's time, and what is due at which moment of it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone


class Clock:
    """Tells the time, and can be put forward.

    Whatever is due runs in the order of its time, one at a time, with the lock held: on the thread that puts the
    clock forward, on one that waits, or on the clock's own.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._ahead_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="emulator clock", daemon=True)

    def start(self) -> None:
        """Run what is due by itself from now on."""
        self._thread.start()

    def close(self) -> None:
        """Run nothing any more."""
        with self.changed:
            self._closed = True
            self._due.clear()
            self.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead_s

    def stamp(self, at: float | None = None) -> str:
        """A moment (now, where none is given) as the API writes it."""
        moment = datetime.fromtimestamp(self.now() if at is None else at, timezone.utc)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def advance(self, seconds: float) -> None:
        """Put the clock forward, and run all that has become due."""
        with self.changed:
            self._ahead_s += seconds
            self.run_due()

    def skip(self) -> bool:
        """Put the clock forward to whatever is due next, and run it; False: nothing is to come."""
        with self.changed:
            if not self._due:
                return False
            self.advance(self._until_next())
            return True

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Run `action` once the clock shows `at`."""
        with self.changed:
            heapq.heappush(self._due, (at, next(self._serial), action))
            self.changed.notify_all()

    def call_in(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` in so many seconds."""
        self.call_at(self.now() + seconds, action)

    @property
    def has_due(self) -> bool:
        """Whether anything is to come."""
        return bool(self._due)

    def forget(self) -> None:
        """Drop all that is still to come."""
        with self.changed:
            self._due.clear()

    def run_due(self) -> None:
        """Run all that is due."""
        with self.changed:
            ran = False
            while not self._closed and self._due and self._due[0][0] <= self.now():
                heapq.heappop(self._due)[2]()
                ran = True
            if ran:
                self.changed.notify_all()

    def wait_for(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, which is asked with the lock held; real seconds.

        Returns:
            Whether it came in time.
        """
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                self.run_due()
                if done():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return False
                self.changed.wait(min(left, self._until_next()))

    def _until_next(self) -> float:
        return max(0.0, self._due[0][0] - self.now()) if self._due else 3600.0

    def _run(self) -> None:
        with self.changed:
            while not self._closed:
                self.run_due()
                self.changed.wait(self._until_next())
