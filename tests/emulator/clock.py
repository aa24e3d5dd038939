"""The emulator's time, and the actions that are due at each time."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone


class Clock:
    """Reports the time; it can be advanced.

    Actions run in the order of their times, one at a time, with the lock held: on the thread that advances the
    clock, on a thread that waits, or on the clock's own thread.
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
        """Run due actions automatically from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop running actions."""
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
        """Return a time (default: now) in the API's format."""
        moment = datetime.fromtimestamp(self.now() if at is None else at, timezone.utc)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run each action that becomes due, when the clock shows its time."""
        with self.changed:
            until = self.now() + seconds
            while self._due and self._due[0][0] <= until and not self._closed:
                self._ahead_s += max(0.0, self._due[0][0] - self.now())
                self.run_due()
            self._ahead_s += max(0.0, until - self.now())
            self.run_due()

    def skip(self) -> bool:
        """Advance the clock to the next action, and run it; return False if there is none."""
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
        """Run `action` after `seconds`."""
        self.call_at(self.now() + seconds, action)

    @property
    def has_due(self) -> bool:
        """Return whether an action is scheduled."""
        return bool(self._due)

    def forget(self) -> None:
        """Drop all scheduled actions."""
        with self.changed:
            self._due.clear()

    def run_due(self) -> None:
        """Run all due actions."""
        with self.changed:
            ran = False
            while not self._closed and self._due and self._due[0][0] <= self.now():
                heapq.heappop(self._due)[2]()
                ran = True
            if ran:
                self.changed.notify_all()

    def wait_for(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, which is called with the lock held; the timeout is in real seconds.

        Returns:
            True if `done` returned true in time.
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
