"""Wait for the sockets and deadlines of all connections in one thread."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE
from socket import socket

READ, WRITE = EVENT_READ, EVENT_WRITE

_LINGER_S = 0.2  # for which an idle thread waits for more work before it ends
_FEW = 64


class Timer:
    """A call at a later time, as `Loop.call_at` returns it."""

    __slots__ = ("_loop", "at", "call")

    def __init__(self, loop: Loop, at: float, call: Callable[[], object]) -> None:
        self._loop = loop
        self.at = at
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not call, unless the call has begun; repeated calls do nothing."""
        self._loop._cancel(self)


class Loop:
    """A thread that calls functions when sockets are ready and when times come; it runs while there are any.

    All methods may be called from any thread. The functions are called in the thread of the loop, one at a time, so
    they must not wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._sockets = 0
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector  # of the thread, as are the ends of the pipe that wakes it
        self._wake_reader = self._wake_writer = -1

    def is_current(self) -> bool:
        """Return whether the caller runs in the thread of the loop."""
        return threading.current_thread() is self._thread

    def register(self, sock: socket, ready: Callable[[int], object]) -> None:
        """Call `ready` with READ, WRITE, or both whenever the socket is ready; first, only READ is awaited."""
        with self._lock:
            self._start()
            self._selector.register(sock, READ, ready)
            self._sockets += 1

    def await_events(self, sock: socket, events: int) -> None:
        """Await only these events of a socket; a socket that is not registered is ignored."""
        with self._lock, contextlib.suppress(KeyError, ValueError):
            if self._thread is not None:
                self._selector.modify(sock, events, self._selector.get_key(sock).data)

    def unregister(self, sock: socket) -> None:
        """Await no more events of a socket; one that has begun may still be handled."""
        with self._lock, contextlib.suppress(KeyError, ValueError):
            if self._thread is not None:
                self._selector.unregister(sock)
                self._sockets -= 1
                self._wake_if_idle()

    def call_at(self, at: float, call: Callable[[], object]) -> Timer:
        """Call a function at a time of `time.monotonic`, or as soon as possible after it."""
        timer = Timer(self, at, call)
        with self._lock:
            has_started = self._start()
            heapq.heappush(self._timers, (at, next(self._numbers), timer))
            if not has_started and self._timers[0][2] is timer and not self.is_current():
                self._wake()
        return timer

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function in the thread of the loop."""
        self.call_at(0.0, call)

    def _cancel(self, timer: Timer) -> None:
        with self._lock:
            if timer.call is None:
                return
            timer.call = None
            self._cancelled += 1
            if self._cancelled > max(_FEW, len(self._timers) // 2):
                self._timers = [entry for entry in self._timers if entry[2].call is not None]
                heapq.heapify(self._timers)
                self._cancelled = 0
            self._wake_if_idle()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Start the thread if it does not run; return whether it did not."""
        if self._thread is not None:
            return False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        self._selector.register(self._wake_reader, READ)
        thread = threading.Thread(target=self._run, name="connections", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads; the next call tries again
            self._stop()
            raise
        self._thread = thread
        return True

    def _stop(self) -> None:
        self._thread = None
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: the thread wakes anyway
            os.write(self._wake_writer, b"\0")

    def _wake_if_idle(self) -> None:
        if self._thread is not None and self._is_idle() and not self.is_current():
            self._wake()

    def _is_idle(self) -> bool:
        return self._sockets == 0 and self._cancelled == len(self._timers)

    def _run(self) -> None:
        has_lingered = False
        while (wait_s := self._wait_s(has_lingered)) is not None:
            ready = self._selector.select(wait_s if wait_s >= 0 else None)
            for key, events in ready:
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                else:
                    self._call(lambda key=key, events=events: key.data(events))  # type: ignore[misc]
            calls = self._due()
            for call in calls:
                self._call(call)
            has_lingered = not ready and not calls

    def _wait_s(self, has_lingered: bool) -> float | None:
        """Return how long to wait; a negative number: without a limit; None: the thread ends."""
        with self._lock:
            if self._is_idle():
                if not has_lingered:
                    return _LINGER_S
                self._stop()
                return None
            while self._timers and self._timers[0][2].call is None:
                heapq.heappop(self._timers)
                self._cancelled -= 1
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else -1.0

    def _due(self) -> list[Callable[[], object]]:
        """Remove the timers whose time has come; return their calls."""
        calls = []
        with self._lock:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if timer.call is None:
                    self._cancelled -= 1
                else:
                    calls.append(timer.call)
                    timer.call = None
        return calls

    @staticmethod
    def _call(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # a bug, which must not end the other connections
            logging.getLogger(__name__).exception("a function of the loop failed")


LOOP = Loop()
"""The loop of all connections of this process."""
