"""The live console: collects events, and draws them with rich in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Group
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from fleet import events
from fleet.console.formatting import paint, read_size, wrap_text
from fleet.console.frame import make_frame
from fleet.console.lines import LogLines, LogStyle
from fleet.console.messages import Reporter
from fleet.console.prefix import WINDOW_S
from fleet.console.reports import format_report
from fleet.console.tables import make_console
from fleet.console.view import View
from fleet.events import HangInspection, JobStarted, LogChunk, Phase, TaskState
from fleet.steps import Step
from provision.quantities import counted

_LINES_MAX = 1000  # that wait for a frame; more cannot be read, and a terminal may be stopped with Ctrl-S
_FRAME_S = 0.5
_CLOCK_S = 1.0  # between two frames when nothing happens
_CLOSE_S = 5.0  # for a terminal that takes no output (Ctrl-S) to take it again
_IN_TABLE = (
    events.FleetOpened,
    events.PriceChanged,
    events.InstanceChanged,
    events.BootstrapProgress,
    events.PushProgress,
    events.TaskPrepared,
    TaskState,
    events.TaskAwaited,
    events.JobResult,
)


class LiveSink:
    """Draw on a terminal in a separate thread, two frames a second.

    emit only records what changed, so that neither an event nor a KeyboardInterrupt in the emitting thread can
    interrupt the drawing. close leaves the last table on the screen and restores the cursor. If the terminal
    goes away, the next emit raises the OSError, once.

    Attributes:
        interval_s: Time between two updates of the log, in seconds; output need not arrive more often.
    """

    interval_s = _FRAME_S

    def __init__(
        self,
        out: TextIO,
        style: LogStyle,
        *,
        size: Callable[[], os.terminal_size] | None = None,
        clock: Callable[[], float] = time.time,
        hint: str = "",
    ) -> None:
        """Create a sink; nothing is drawn before the first event.

        Args:
            out: A terminal.
            style: The way in which the log is shown.
            size: Returns the present size of the terminal.
            clock: Seconds since the epoch.
            hint: Text of the last line while a job runs, such as how to detach.
        """
        self._color = style.color
        self._console = make_console(out, color=style.color)
        self._read_size = size or (lambda: read_size(out))
        self._hint = hint
        self._clock = clock
        self._failure: Exception | None = None  # of the drawing thread
        self._gone = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # guards what follows
        self._view = View()
        self._reporter = Reporter()
        window_s = WINDOW_S + _FRAME_S  # output of another host may arrive with the next frame
        self._log = LogLines(self._add_lines, self._lock, style, align=True, window_s=window_s)
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)  # that wait for the next frame
        self._count = 0  # of the lines that waited
        self._messages: list[tuple[int, str]] = []  # each with the number of lines before it
        self._above = 0  # the number of messages that are printed above the frame at the end, too
        self._has_changed = False
        # Used only by the drawing thread:
        self._frame = _Frame()
        self._widths: dict[str, int] = {}  # of the columns, in a terminal of this size
        self._size = os.terminal_size((0, 0))
        self._drawn_at = 0.0

    def emit(self, event: events.Event) -> None:
        """Take one event.

        Raises:
            OSError: The terminal is gone.
        """
        if self._gone:
            return
        with self._lock:
            self._has_changed = True
            if isinstance(event, LogChunk):
                self._log.add(event)
            else:
                self._view.take(event, self._clock())
                self._log.compare(event)
                if message := self._message(event):
                    self._log.flush()
                    self._messages.append((self._count, message))
            if isinstance(event, (LogChunk, JobStarted)):
                self._above = len(self._messages)
        if self._failure is not None:
            self._gone = True
            raise self._failure
        if self._thread is None:
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name="console", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Draw the rest, and release the terminal until the next event; further calls do nothing."""
        if self._thread is None:
            return
        self._wake.set()
        try:
            self._thread.join(_CLOSE_S)
        except KeyboardInterrupt:
            self._thread.join(_CLOSE_S)
            raise
        finally:
            self._thread = None
        if self._view.result or self._view.down:  # what follows is about something else
            self._view = View()
        if self._failure is not None and not isinstance(self._failure, OSError):
            raise self._failure

    def _add_lines(self, data: bytes) -> None:
        lines = data.decode("utf-8", "replace").split("\n")[:-1]
        self._lines.extend(lines)
        self._count += len(lines)
        self._has_changed = True

    def _message(self, event: events.Event) -> str:
        width = self._read_size().columns
        if report := format_report(event, width):
            return report
        is_fork = isinstance(event, TaskState) and event.cold is not None and event.phase is Phase.RUNNING
        message = "" if isinstance(event, _IN_TABLE) and not is_fork else self._reporter.message(event)
        if message and isinstance(event, HangInspection) and (event.stack or event.sockets):
            message += f"; `{Step('logs').text(self._view.fleet)}` shows its stack"
        return "".join(wrap_text(line, width) + "\n" for line in message.split("\n")) if message else ""

    # --- the drawing thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        live = Live(
            self._frame, console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        try:
            try:
                live.start()
                self._draw()
                while not self._wake.wait(_FRAME_S):
                    is_late = time.monotonic() - self._drawn_at >= _CLOCK_S
                    if self._has_changed or is_late or self._read_size() != self._size:
                        self._draw()
                below = self._draw(last=True)
            finally:
                live.stop()
            self._print(below)
        except Exception as error:  # noqa: BLE001 - raised again by emit
            self._failure = error

    def _draw(self, *, last: bool = False) -> str:
        """Print what is new above the frame, and draw the frame; return what comes below the last one."""
        size = self._read_size()
        if size != self._size:
            self._size, self._console.size = size, size
            self._widths.clear()
        with self._lock:
            self._has_changed = False
            if last:
                self._log.finish()
            above, below = self._take_text(last=last)
            self._view.is_over = last
            has_hint = not (last or self._view.result) and self._view.job
            self._frame.lines = make_frame(
                self._view,
                width=size.columns,
                height=size.lines,
                now=self._clock(),
                bars=self._log.bars(),
                notice=self._hint if has_hint else "",
                widths=self._widths,
            )
        self._drawn_at = time.monotonic()
        self._print(above)
        return below

    def _take_text(self, *, last: bool) -> tuple[str, str]:
        """Return lines and messages in their order; with `last`, separately the messages at the end."""
        messages, end = self._messages, self._above if last else len(self._messages)
        missing = self._count - len(self._lines)
        texts = [f"{line}\n" for line in self._lines]
        for number, message in reversed(messages[:end]):
            texts.insert(max(0, number - missing), message)
        if missing:
            words = f"… {counted(missing, 'line')} not shown; fleet logs has them all"
            texts.insert(0, paint(words, "dim" if self._color else "") + "\n")
        self._lines.clear()
        self._messages, self._count, self._above = [], 0, 0
        return "".join(texts), "".join(message for _, message in messages[end:])

    def _print(self, text: str) -> None:
        self._console.print(Segments([Segment(text)]), crop=False)


class _Frame:
    """The present frame, which rich draws again below each output."""

    lines: Sequence[Text] = ()

    def __rich__(self) -> Group:
        return Group(*self.lines)
