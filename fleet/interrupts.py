"""SIGINT and SIGTERM as KeyboardInterrupt: at a moment that harms nothing, and no more once the command has ended."""

from __future__ import annotations

import signal
import time
from types import FrameType

_IMPORTING = "<frozen importlib"  # file of the frames of Python's own import
_AGAIN_S = 0.005
_PAUSE_S = 0.2
"""Time between two interrupts, in seconds: long enough to reach the code that handles the first."""


class _Interrupts:
    """Handle both signals."""

    def __init__(self) -> None:
        self.ended = False
        self._held = 0
        self._raised_at = -_PAUSE_S

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or have the same signal sent again a little later."""
        if self.ended:
            return
        wait_s = self._raised_at + _PAUSE_S - time.monotonic()
        if wait_s > 0 or _is_importing(frame):
            self._held = number
            signal.setitimer(signal.ITIMER_REAL, max(_AGAIN_S, wait_s))
            return
        self._raised_at = time.monotonic()
        raise KeyboardInterrupt

    def again(self, *_: object) -> None:
        """Send the signal that was held back."""
        if not self.ended:
            signal.raise_signal(self._held)


_interrupts = _Interrupts()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False


def catch_interrupts() -> None:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, but not during an import, and not twice at once.

    After an import that was broken off, Python would keep its locks, and every thread that imports anything would
    wait forever. A second signal that comes while the first is being handled would break that off. In both cases the
    signal is sent again a little later. A signal that was ignored from the start, as in a background job of a shell
    without job control, stays ignored.
    """
    signal.signal(signal.SIGALRM, _interrupts.again)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupts.interrupt)


def ignore_interrupts() -> None:
    """Let no signal change the exit code any more: the command has ended, and only reports how."""
    _interrupts.ended = True  # first: each of the following calls runs the handlers of pending signals
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
