"""The live console: collects events, and draws them with rich in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.segment import ControlType, Segment

from fleet import events
from fleet.console.formatting import accepts_color, paint
from fleet.console.frame import make_frame
from fleet.console.log_lines import LogText, clean
from fleet.console.messages import Reporter
from fleet.console.pages import read_size, wrap_text
from fleet.console.prefix import format_prefix
from fleet.console.repeats import Repeats
from fleet.console.reports import format_report
from fleet.console.tables import Frame, draw_lines, open_console, open_live
from fleet.console.view import View, apply
from fleet.events import AttemptEnded, HangInspection, LogChunk
from fleet.jobs.following.log_view import is_startup_line
from fleet.steps import Step
from provision.quantities import counted

_BYTES_MAX = 8 * 1024 * 1024  # waiting to be shown: a terminal may be stopped with Ctrl-S
_LINES_MAX = 2500  # in a frame; more cannot be read
_KEPT_LINES = 20  # of each task, when most are left out: a flood often ends with the reason for it


class Backlog:
    """Collect output of all tasks.

    Args:
        startup: Keep TensorFlow's startup messages.

    Attributes:
        hidden: Number of startup messages that were left out.
    """

    def __init__(self, *, startup: bool = False) -> None:
        self.hidden = 0
        self._startup = startup
        self._texts: dict[str, LogText] = {}
        self._last: dict[str, tuple[int, bool]] = {}  # a task's attempt, and whether its output ends within a line
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._dropped = 0

    def add(self, chunk: LogChunk) -> None:
        """Take output; the oldest is left out when too much waits."""
        data = chunk.data
        attempt, is_unfinished = self._last.get(chunk.task, (chunk.attempt, False))
        if attempt != chunk.attempt and is_unfinished:
            data = b"\n" + data
        self._last[chunk.task] = (chunk.attempt, not data.endswith(b"\n"))
        self._chunks.append((chunk.task, data))
        self._bytes += len(data)
        while self._bytes > _BYTES_MAX and len(self._chunks) > 1:
            task, oldest = self._chunks.popleft()
            self._bytes -= len(oldest)
            self._dropped += oldest.count(b"\n")
            self._text(task).skip()

    def take(self, *, last: bool = False) -> tuple[list[tuple[str, str]], int]:
        """Return the complete lines, each with its task, and how many lines before them are left out.

        Of too many lines, only the last ones of each task are returned.

        Args:
            last: The output has ended: return unfinished lines, too.
        """
        lines = [(task, line) for task, data in self._chunks for line in self._text(task).feed(data)]
        if last:
            lines += [(task, line) for task, text in self._texts.items() for line in text.finish()]
        dropped, self._dropped = self._dropped, 0
        self._chunks.clear()
        self._bytes = 0
        shown = lines if self._startup else [pair for pair in lines if not is_startup_line(pair[1])]
        self.hidden += len(lines) - len(shown)
        if len(shown) <= _LINES_MAX:
            return shown, dropped
        counts: Counter[str] = Counter()
        kept = []
        for task, line in reversed(shown):
            counts[task] += 1
            if counts[task] <= _KEPT_LINES:
                kept.append((task, line))
        return kept[::-1], dropped + len(shown) - len(kept)

    def bars(self) -> dict[str, str]:
        """Return the progress bars that tasks are drawing, by name of the task."""
        return {task: bar for task, text in self._texts.items() if (bar := text.bar)}

    def _text(self, task: str) -> LogText:
        return self._texts.setdefault(task, LogText())


_FRAME_S = 0.5
_CLOCK_S = 1.0  # between two frames when nothing happens
_HELD_S = 0.1  # a message may turn out to be the last one, which is below the last frame
_AT_ONCE = 0.0  # in place of a time
_CLOSE_S = 5.0  # for a terminal that takes no output (Ctrl-S) to take it again

# Everything else is seen in the table.
_PRINTED = (
    events.Note,
    events.ZoneTried,
    events.JobStarted,
    events.JobQueued,
    AttemptEnded,
    HangInspection,
    events.JobDiagnosed,
    events.ConnectionLost,
    events.ConnectionRestored,
    events.FleetResized,
    events.FleetDown,
    events.FleetStopped,
    events.OrphansDeleted,
    events.ImageBaked,
    events.JobsDeleted,
    events.ResultsPulled,
    events.ReportWritten,
    events.SshConfigChanged,
    events.FilesPushed,
    events.TensorboardStarted,
)


class LiveSink:
    """Draw on a terminal in a separate thread, two frames a second.

    emit only records an event, so that neither an event nor a KeyboardInterrupt in the emitting thread can
    interrupt the drawing. close leaves the last table on the screen and restores the cursor. If the terminal
    goes away, the next emit raises the OSError, once.

    Attributes:
        interval_s: Time between two updates of the log, in seconds; output need not arrive more often.
    """

    interval_s = _FRAME_S

    def __init__(
        self,
        out: TextIO,
        *,
        prefix: bool = True,
        startup: bool = False,
        size: Callable[[], os.terminal_size] | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        hint: str = "",
    ) -> None:
        """Create a sink; nothing is drawn before the first event.

        Args:
            out: A terminal.
            prefix: True if lines of the log start with their task.
            startup: True if TensorFlow's startup messages are shown.
            size: Returns the present size of the terminal.
            environ: Environment: TERM and NO_COLOR count.
            clock: Seconds since the epoch.
            hint: Text of the last line while a job runs, such as how to detach.
        """
        self._color = accepts_color(out, environ)
        self._console = open_console(out, color=self._color)
        self._reflows = reflows(environ)
        self._read_size = size or (lambda: read_size(out))
        self._prefix = prefix
        self._hint = hint
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._view = View()
        self._backlog = Backlog(startup=startup)
        self._messages: list[tuple[float, str]] = []  # time, message
        self._reporter = Reporter()
        self._has_changed = False
        self._failure: Exception | None = None  # of the drawing thread
        self._gone = False
        # Used only by the drawing thread:
        self._frame = Frame()
        self._widths: dict[str, int] = {}  # of the columns, in a terminal of this size
        self._size = os.terminal_size((0, 0))
        self._repeats = Repeats() if prefix and not startup else None
        self._drawn_at = 0.0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, event: events.Event) -> None:
        """Take one event.

        Raises:
            OSError: The terminal is gone.
        """
        if self._gone:
            return
        now = self._clock()
        with self._lock:
            self._has_changed = True
            if isinstance(event, events.LogChunk):
                self._backlog.add(event)
            else:
                self._view = apply(self._view, event, now)
                self._add_message(event)
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
        self._backlog.hidden = 0  # the last frame reports them
        if self._view.result or self._view.down:  # what follows is about something else
            self._view = View()
        if self._failure is not None and not isinstance(self._failure, OSError):
            raise self._failure

    def _add_message(self, event: events.Event) -> None:
        width = self._read_size().columns
        report = format_report(event, width)
        if report:
            self._messages.append((time.monotonic(), report))
        elif isinstance(event, _PRINTED):
            message = self._reporter.message(event)
            if not message:
                return
            if isinstance(event, HangInspection) and (event.stack or event.sockets):
                message += f"; `{Step('logs').text(self._view.fleet)}` shows its stack"
            text = "\n".join(wrap_text(line, width) for line in message.split("\n"))
            self._messages.append((time.monotonic(), text + "\n"))
            if isinstance(event, events.JobStarted):
                self._messages = [(_AT_ONCE, earlier) for _, earlier in self._messages]

    def _run(self) -> None:
        live = open_live(self._console, self._frame)
        try:
            live.start()
            try:
                self._draw()
                while not self._wake.wait(_FRAME_S):
                    if self._is_due():
                        self._draw()
                self._draw(last=True)
            finally:
                with self._console:
                    live.stop()
                    self._console.print(_Printed("".join(text for _, text in self._messages)), crop=False)
                self._messages.clear()
        except Exception as error:  # noqa: BLE001 - raised again by emit
            self._failure = error

    def _is_due(self) -> bool:
        waits = self._repeats is not None and self._repeats.is_waiting
        is_late = time.monotonic() - self._drawn_at >= _CLOCK_S
        return self._has_changed or waits or is_late or self._read_size() != self._size

    def _draw(self, *, last: bool = False) -> None:
        with self._lock:
            view, before, due = self._view, self._take_messages(_AT_ONCE), ""
            if not last:
                due = self._take_messages(time.monotonic() - _HELD_S)
            lines, dropped = self._backlog.take(last=last)
            bars = {} if last else self._backlog.bars()
            hidden = self._backlog.hidden
            self._has_changed = bool(self._messages)
        self._drawn_at = time.monotonic()
        text = before + self._log_text(view, lines, dropped)
        text += self._held_text(view) + due if last or due else ""
        is_over = replace(view, is_over=last)
        notice = self._notice(hidden, "" if last or view.result or not view.job else self._hint)
        while True:
            size = self._read_size()
            if size != self._size:
                self._widths.clear()
            frame = self._make_lines(is_over, size, bars, notice)
            if self._read_size() == size:  # a frame for another size cannot be erased whole
                break
        with self._console:  # one write
            if self._reflows and size.columns < self._size.columns:
                self._erase_wrapped(size.columns)
            self._size, self._frame.lines = size, frame
            self._console.print(_Printed(text), crop=False)

    def _make_lines(
        self, view: View, size: os.terminal_size, bars: Mapping[str, str], notice: str
    ) -> list[list[Segment]]:
        self._console.size = size
        frame = make_frame(
            view,
            width=size.columns,
            height=size.lines,
            now=self._clock(),
            bars=bars,
            notice=notice,
            widths=self._widths,
        )
        return draw_lines(self._console, frame)

    def _erase_wrapped(self, columns: int) -> None:
        """Erase the rows that the last frame takes in addition in a narrower terminal that wraps its lines again."""
        rows = sum((Segment.get_line_length(line) - 1) // columns for line in self._frame.lines if line)
        erase_above = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)]
        self._console.control(Control((ControlType.ERASE_IN_LINE, 2), *(erase_above * rows)))

    def _take_messages(self, until: float) -> str:
        """Return the messages up to this time; those just before the end are printed below the table."""
        taken = [text for at, text in self._messages if at <= until]
        self._messages = [(at, text) for at, text in self._messages if at > until]
        return "".join(taken)

    def _log_text(self, view: View, lines: Sequence[tuple[str, str]], dropped: int) -> str:
        """Return the lines to print now; each stands for all tasks that wrote it."""
        text = ""
        if dropped:
            left_out = f"… {counted(dropped, 'line')} not shown; fleet logs has them all"
            text = self._held_text(view) + paint(left_out, "dim" if self._color else "") + "\n"
        if self._repeats is None:
            return text + self._lines_text(view, [((task,), line) for task, line in lines])
        return text + self._lines_text(view, self._repeats.add(lines, _comparable(view), time.monotonic()))

    def _held_text(self, view: View) -> str:
        """Return the lines that wait for the same lines of other tasks."""
        return self._lines_text(view, self._repeats.flush(_comparable(view))) if self._repeats else ""

    def _lines_text(self, view: View, lines: Iterable[tuple[Sequence[str], str]]) -> str:
        width, total = max((len(row.name) for row in view.rows), default=0), len(_comparable(view))
        text = ""
        for tasks, line in lines:
            text += format_prefix(tasks, total, width=width, color=self._color) if self._prefix else ""
            text += f"{line if self._color else clean(line)}\n"
        return text

    def _notice(self, hidden: int, hint: str) -> str:
        startup = f"{counted(hidden, 'TensorFlow startup line')} hidden" if hidden else ""
        return " · ".join(filter(None, (hint, startup)))


class _Printed:
    """Lines that are printed above the frame as they are: without control sequences except colors."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


def _comparable(view: View) -> list[str]:
    """Return the running tasks that print the same lines if they train together."""
    return [row.name for row in view.rows if row.running and not row.name.startswith(("ps-", "evaluator-"))]


def reflows(environ: Mapping[str, str]) -> bool:
    """Return True if the terminal wraps lines again when its width changes; xterm, Linux, and GNU screen do not."""
    if environ.get("TMUX"):
        return True
    term = environ.get("TERM", "")
    return not (environ.get("XTERM_VERSION") or term == "linux" or term.startswith("screen"))
