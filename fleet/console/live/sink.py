"""The sink of the live console: collects events, and draws them in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from fleet import events
from fleet.console.colors import accepts_color, paint
from fleet.console.live.backlog import Backlog, Batch
from fleet.console.live.repeats import Repeats
from fleet.console.live.table import ASCII, Glyphs, TableMemory, render_view
from fleet.console.live.terminal import Terminal, read_size, reflows
from fleet.console.live.view import View, apply
from fleet.console.log_lines import clean
from fleet.console.messages import Reporter
from fleet.console.pages import wrap_text
from fleet.console.prefix import format_prefix
from fleet.console.reports import format_report
from fleet.events import AttemptEnded, HangInspection
from fleet.steps import Step
from provision.quantities import counted

_REFRESH_S = 0.1
_SLOW_REFRESH_S = 0.2  # if only the log or the figures of tasks have changed
_AT_ONCE = 0.0  # in place of a time
_CLOCK_S = 1.0  # between two redraws when nothing happens
_LINES_PER_S = 5000  # of the log; more cannot be read
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
    """Draw on a terminal in a separate thread, at most ten times a second.

    If only the log or the figures of tasks have changed, it draws five times a second.

    emit only records an event, so that neither an event nor a KeyboardInterrupt in the emitting thread can
    interrupt the drawing. close leaves the last table on the screen and restores the cursor. If the terminal
    goes away, the next emit raises the OSError, once.

    Attributes:
        interval_s: Time between two updates of the log, in seconds; output need not arrive more often.
    """

    interval_s = _SLOW_REFRESH_S

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
        self._terminal = Terminal(
            out, color=self._color, reflows=reflows(environ), size=size or (lambda: read_size(out))
        )
        self._glyphs = Glyphs() if (out.encoding or "").lower().startswith("utf") else ASCII
        self._prefix = prefix
        self._hint = hint
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._view = View()
        self._backlog = Backlog(startup=startup)
        self._messages: list[tuple[float, str]] = []  # time, message
        self._reporter = Reporter()
        self._dirty = False  # the table or a message has changed
        self._has_news = False  # output waits, or figures in the table have changed
        self._failure: Exception | None = None  # of the drawing thread
        self._gone = False
        # Used only by the drawing thread:
        self._memory = TableMemory()
        self._repeats = Repeats() if prefix and not startup else None
        self._allowance = float(_LINES_PER_S)
        self._drawn_at = time.monotonic()
        self._flood = 0  # lines left out since the last that was shown
        self._held: tuple[tuple[str, str], ...] = ()  # the latest of these lines
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
            if isinstance(event, events.LogChunk):
                self._backlog.add(event)
                self._has_news = True
            else:
                self._view = apply(self._view, event, now)
                self._add_message(event)
                is_figure = isinstance(event, (events.Progress, events.Usage))
                self._has_news, self._dirty = self._has_news or is_figure, self._dirty or not is_figure
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

    def _add_message(self, event: events.Event) -> None:
        width = self._terminal.read_size().columns
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
        try:
            self._terminal.open()
            try:
                self._draw_until_closed()
            finally:
                self._terminal.close("".join(text for _, text in self._messages))
                self._messages.clear()
        except Exception as error:  # noqa: BLE001 - raised again by emit
            self._failure = error

    def _draw_until_closed(self) -> None:
        self._draw()
        while not self._wake.wait(_REFRESH_S):
            if self._is_due():
                self._draw()
        self._draw(last=True)

    def _is_due(self) -> bool:
        waited_s = time.monotonic() - self._drawn_at
        has_news = self._has_news or self._flood or (self._repeats is not None and self._repeats.is_waiting)
        limit_s = _SLOW_REFRESH_S if has_news else _CLOCK_S
        return self._dirty or waited_s >= limit_s or self._terminal.is_resized

    def _draw(self, *, last: bool = False) -> None:
        with self._lock:
            view, before, due = self._view, self._take_preceding(), "" if last else self._take_due()
            batch = self._backlog.take(self._lines_max())
            end = self._backlog.finish() if last else Batch()
            bars = {} if last else self._backlog.bars()
            hidden = self._backlog.hidden
            self._dirty, self._has_news = bool(self._messages), False
        text = before + self._log_text(view, batch, end, last=last)
        text += self._held_text(view) + due if last or due else ""
        size = self._terminal.read_size()
        lines = render_view(
            replace(view, is_over=last),
            width=size.columns,
            height=size.lines,
            now=self._clock(),
            bars=bars,
            notice=self._notice(hidden, "" if last or view.result or not view.job else self._hint),
            glyphs=self._glyphs,
            memory=self._memory,
        )
        self._terminal.update(text, lines, size)

    def _take_preceding(self) -> str:
        """Return messages that must be printed above the output of the job, however short it was."""
        messages = [text for at, text in self._messages if at == _AT_ONCE]
        self._messages = [(at, text) for at, text in self._messages if at != _AT_ONCE]
        return "".join(messages)

    def _take_due(self) -> str:
        """Return the messages that are old enough to print; those just before the end are printed below the table."""
        now = time.monotonic()
        due = [text for at, text in self._messages if now - at >= _REFRESH_S]
        del self._messages[: len(due)]
        return "".join(due)

    def _lines_max(self) -> int:
        """Return the number of log lines that may be shown now; fewer during a flood."""
        now = time.monotonic()
        self._allowance = min(_LINES_PER_S, self._allowance + _LINES_PER_S * (now - self._drawn_at))
        self._drawn_at = now
        return int(min(self._allowance, _LINES_PER_S * _REFRESH_S / 2) if self._flood else self._allowance)

    def _log_text(self, view: View, batch: Batch, end: Batch, *, last: bool) -> str:
        """Return the part of the log to print: nothing during a flood, its end afterwards."""
        if batch.dropped:
            self._flood += batch.dropped + len(self._held)
            self._held = batch.lines
            if not last:
                return self._held_text(view)
            batch = Batch()
        text = ""
        if self._flood:
            text = self._held_text(view) + paint(_left_out(self._flood, self._glyphs), self._style("dim")) + "\n"
            batch = Batch(self._held + batch.lines)
            self._flood, self._held = 0, ()
        self._allowance -= len(batch.lines)
        lines = batch.lines + end.lines
        if self._repeats is None:
            return text + self._lines_text(view, [((task,), line) for task, line in lines])
        return text + self._lines_text(view, self._repeats.add(lines, _comparable(view), time.monotonic()))

    def _held_text(self, view: View) -> str:
        """Return the lines that wait for the same lines of other tasks."""
        return self._lines_text(view, self._repeats.flush(_comparable(view))) if self._repeats else ""

    def _lines_text(self, view: View, lines: Iterable[tuple[Sequence[str], str]]) -> str:
        wide, total = max((len(row.name) for row in view.rows), default=0), len(_comparable(view))
        return "".join(self._log_line(tasks, line, wide, total) for tasks, line in lines)

    def _log_line(self, tasks: Sequence[str], line: str, wide: int, total: int) -> str:
        text = line if self._color else clean(line)
        return (
            format_prefix(tasks, total, width=wide, color=self._color) + f"{text}\n" if self._prefix else f"{text}\n"
        )

    def _notice(self, hidden: int, hint: str) -> str:
        parts = []
        if self._flood:
            parts.append(_left_out(self._flood, self._glyphs))
        if hint:
            parts.append(hint)
        if hidden and not self._flood:
            parts.append(f"{counted(hidden, 'TensorFlow startup line')} hidden")
        return f" {self._glyphs.dot} ".join(parts)

    def _style(self, style: str) -> str:
        return style if self._color else ""


def _comparable(view: View) -> list[str]:
    """Return the running tasks that print the same lines if they train together."""
    return [row.name for row in view.rows if row.running and not row.name.startswith(("ps-", "evaluator-"))]


def _left_out(count: int, glyphs: Glyphs) -> str:
    return f"{glyphs.mark} {counted(count, 'line')} not shown; fleet logs has them all"
