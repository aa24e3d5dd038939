"""SIGINT and SIGTERM as KeyboardInterrupt: where they harm nothing, and no longer once the command has ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

_IMPORTING = "<frozen importlib"  # file of the frames of Python's own import
_AGAIN_S, _DEFERRED_S = 0.005, 0.05
_PAUSE_S = 0.2
"""Time between two interrupts, in seconds: long enough to reach the code that handles the first."""


class _Interrupts:
    """Handle both signals."""

    def __init__(self) -> None:
        self.ended = False
        self.raised = False
        self.deferred = False
        self._held = 0
        self._raised_at = -_PAUSE_S

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or send the same signal again a little later."""
        if self.ended:
            return
        wait_s = self._raised_at + _PAUSE_S - time.monotonic()
        if self.deferred or wait_s > 0 or _is_outermost(frame) or _is_importing(frame):
            self._held = number
            signal.setitimer(signal.ITIMER_REAL, max(_DEFERRED_S if self.deferred else _AGAIN_S, wait_s))
            return
        self._raised_at = time.monotonic()
        self.raised = True
        raise KeyboardInterrupt

    def again(self, _: int, frame: FrameType | None) -> None:
        """Handle the signal that was held back."""
        self.interrupt(self._held, frame)


_interrupts = _Interrupts()


def _is_outermost(frame: FrameType | None) -> bool:
    """Return whether main() itself runs, or this module: nothing would catch an exception raised there."""
    if frame is None:
        return False
    module = frame.f_globals.get("__name__")
    return module == __name__ or (module in ("__main__", "fleet.__main__") and frame.f_code.co_name == "main")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False


def catch_interrupts() -> None:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, except during an import, in main() itself, and twice at once.

    After an interrupted import, Python would keep its locks, and every thread that imports a module would wait
    forever. A second signal would interrupt the handling of the first. In these cases the signal is sent again a
    little later. A signal that was ignored from the start, as in a background job of a shell
    without job control, stays ignored.
    """
    signal.signal(signal.SIGALRM, _interrupts.again)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupts.interrupt)


def ignore_interrupts() -> None:
    """Ignore signals from now on, so that they do not change the exit code of a command that has ended."""
    _interrupts.ended = True  # first: each of the following calls runs the handlers of pending signals
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def was_interrupted() -> bool:
    """Return whether a signal has raised KeyboardInterrupt."""
    return _interrupts.raised


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the block has ended; for blocks that have deadlines."""
    _interrupts.deferred = True
    try:
        yield
    finally:
        _interrupts.deferred = False
