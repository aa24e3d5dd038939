"""Event loop of one thread: file descriptors and timers."""

from __future__ import annotations

import contextlib
import selectors
import time
from typing import TYPE_CHECKING, Callable, Dict, Tuple

if TYPE_CHECKING:
    from typing import TypeAlias

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

_Ready: TypeAlias = "Callable[[int], None]"


class Loop:
    """Call back when a descriptor is readable or writable, or when a timer expires.

    What is ready is served before what is due, so that bytes which came in time count as in time. A timer with slack
    is called together with something else if possible: most of the CPU time of an idle agent is the time to wake up.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: Dict[str, Tuple[float, float, Callable[[], None]]] = {}  # due, latest

    def watch(self, fd: int, events: int, call: _Ready) -> None:
        """Call `call` with the events that are ready on `fd`; replaces an earlier watch."""
        try:
            self._selector.modify(fd, events, call)
        except KeyError:
            self._selector.register(fd, events, call)

    def unwatch(self, fd: int) -> None:
        """Stop watching; must be called before `fd` is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def after(self, name: str, seconds: float, call: Callable[[], None], *, slack_s: float = 0.0) -> None:
        """Call `call` once after `seconds`; replaces the timer of that name.

        Args:
            name: Of the timer.
            seconds: Time until it is due.
            call: Called without arguments.
            slack_s: Longest further time, in which `call` waits for the next event or timer.
        """
        due = time.monotonic() + seconds
        self._timers[name] = (due, due + slack_s, call)

    def waits_for(self, name: str) -> bool:
        """Return True if the timer of that name is set."""
        return name in self._timers

    def cancel(self, name: str) -> None:
        """Cancel a timer; a missing timer is ignored."""
        self._timers.pop(name, None)

    def turn(self) -> None:
        """Wait for the next event and serve it."""
        timeout = None
        if self._timers:
            timeout = max(0.0, min(latest for _, latest, _ in self._timers.values()) - time.monotonic())
        for key, events in self._selector.select(timeout):
            # Served one may have stopped the watch of a later one, or closed it and opened another.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:
                key.data(events)
        now = time.monotonic()
        for name in [name for name, (due, _, _) in self._timers.items() if due <= now]:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer[2]()

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()
