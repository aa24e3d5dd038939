"""The log as lines; and the sink for pipes, files, and CI: the log on standard output, messages on standard error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple, TextIO

from fleet import events
from fleet.console.formatting import read_width, wrap_text
from fleet.console.log_lines import clean, render_line
from fleet.console.messages import Activities, Reporter, format_inspection
from fleet.console.prefix import WAITING_MAX, WINDOW_S, Repeats, format_prefix
from fleet.console.reports import format_report
from fleet.errors import fold
from fleet.jobs.following.log_view import final_lines, latest_state

_PARTIAL_MAX = 64 * 1024  # bytes of an unfinished line that are held back


def _trains(task: str) -> bool:
    return bool(task) and not task.startswith(("ps-", "evaluator-"))


class LogStyle(NamedTuple):
    """The way in which the log is shown.

    Attributes:
        prefix: Lines start with their task.
        color: Prefixes and lines may have colors.
        terminal: The lines reach a terminal: a task's control sequences must not.
        raw: Output is passed on byte for byte.
    """

    prefix: bool = True
    color: bool = False
    terminal: bool = False
    raw: bool = False


class LogLines:
    r"""Turn the output of all tasks into lines ``worker-0 | text``.

    A line ends only at ``\n``, or after 64 KiB, and is written when it is complete, or when its attempt ends. Text
    that carriage returns and backspaces replace is left out, and a line that all tasks write at the same time is
    written once. All other bytes stay as they are.

    If it is raw, a line is what the task wrote, byte for byte; without prefixes, too, the bytes are passed on as they
    come, and nothing is added.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        lock: threading.RLock,
        style: LogStyle,
        *,
        align: bool = False,
        window_s: float = WINDOW_S,
    ) -> None:
        """Write nothing before the first output.

        Args:
            write: Takes complete lines, except if the style is raw.
            lock: Is held when a method is called; a timer takes it, too.
            style: The way in which lines are shown.
            align: All prefixes have the same width.
            window_s: Time in which all tasks print the same line.
        """
        self._write = write
        self._lock = lock
        self._style = style
        self._align = align
        self._timer: threading.Timer | None = None
        self._window_s = window_s
        self._repeats = Repeats(window_s)
        self._at = 0.0  # the newest time of output
        self._attempt, self._tasks = 0, set[str]()  # that print the same lines in this attempt
        self._unfinished: dict[str, tuple[int, bytes]] = {}  # attempt and unfinished line of each task
        self._failure: OSError | None = None  # of the timer

    def compare(self, event: events.Event) -> None:
        """Learn which tasks may print the same lines: those that train together in the newest attempt."""
        if isinstance(event, events.JobStarted):
            self._attempt = event.attempt
            self._tasks = {member.task for member in event.members if _trains(member.task)}
        elif isinstance(event, events.TaskState) and event.attempt >= self._attempt and _trains(event.task):
            self._tasks = {event.task} | (self._tasks if event.attempt == self._attempt else set())
            self._attempt = event.attempt

    def add(self, chunk: events.LogChunk) -> None:
        """Take output of a task."""
        if self._style.raw and not (self._style.prefix or self._style.terminal):
            self._write(chunk.data)
            return
        attempt, held = self._unfinished.pop(chunk.task, (chunk.attempt, b""))
        if attempt != chunk.attempt:
            self._write_unfinished(chunk.task, held)
            held = b""
        whole, newline, rest = (held + chunk.data).rpartition(b"\n")
        if newline:
            self._at = max(self._at, chunk.at)
            self._add_lines(chunk.task, whole + newline)
        if len(rest) >= _PARTIAL_MAX and not self._style.raw:
            rest = latest_state(rest)
        if len(rest) >= _PARTIAL_MAX:
            self._write_unfinished(chunk.task, rest)
            rest = b""
        self._unfinished[chunk.task] = chunk.attempt, rest

    def flush(self) -> None:
        """Write the lines that wait for the same lines of other tasks.

        Raises:
            OSError: they could not be written, now or before.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._repeats.is_waiting:
            self._write_folded(self._repeats.flush(self._tasks))
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def finish(self) -> None:
        """Write unfinished lines."""
        self.flush()
        for task, (_, line) in sorted(self._unfinished.items()):
            self._write_unfinished(task, line)
        self._unfinished.clear()

    def bars(self) -> dict[str, str]:
        """Return the progress bars that tasks are drawing, by name of the task."""
        drawn = {task: line for task, (_, line) in self._unfinished.items() if b"\r" in line or b"\x08" in line}
        return {task: clean(render_line(line.decode("utf-8", "replace"))) for task, line in drawn.items()}

    def _add_lines(self, task: str, data: bytes) -> None:
        data = self._render(data)
        if self._style.raw or not self._style.prefix or len(self._tasks) < 2 or data.count(b"\n") > WAITING_MAX:
            self.flush()
            prefix = self._prefix_of(task)
            self._write(prefix + data[:-1].replace(b"\n", b"\n" + prefix) + data[-1:])
            return
        texts = data.decode("utf-8", "surrogateescape").split("\n")[:-1]
        self._write_folded(self._repeats.add([(task, text) for text in texts], self._tasks, self._at))
        if self._repeats.is_waiting and self._timer is None:
            self._timer = threading.Timer(self._window_s, self._end_wait)
            self._timer.daemon = True
            self._timer.start()

    def _end_wait(self) -> None:
        with self._lock:
            try:
                self.flush()
            except OSError as error:
                self._failure = error

    def _render(self, data: bytes) -> bytes:
        """Return lines in their final state, without control sequences if they reach a terminal."""
        if self._style.terminal:
            render = render_line if self._style.color else lambda line: clean(render_line(line))
            lines = data.decode("utf-8", "replace").split("\n")
            return "\n".join(map(render, lines)).encode("utf-8", "replace")
        return data if self._style.raw else final_lines(data)

    def _write_unfinished(self, task: str, line: bytes) -> None:
        if line:
            self.flush()
            end = b"\n" if self._style.prefix or self._style.terminal else b""
            self._write(self._prefix_of(task) + self._render(line) + end)

    def _write_folded(self, lines: Iterable[tuple[Sequence[str], str]]) -> None:
        texts = [
            b"%s%s\n" % (self._prefix_of(*tasks), line.encode("utf-8", "surrogateescape")) for tasks, line in lines
        ]
        self._write(b"".join(texts))

    def _prefix_of(self, *tasks: str) -> bytes:
        if not self._style.prefix:
            return b""
        width = max(map(len, self._tasks), default=0) if self._align else 0
        return format_prefix(tasks, len(self._tasks), width, color=self._style.color).encode("utf-8", "replace")


class LinesSink:
    """Write the log as lines, and events as sentences.

    If the reader of standard output goes away (``| head``), emit raises BrokenPipeError and drops what it could not
    write; from then on, emit writes nothing more there, and raises nothing, and close raises nothing either.
    """

    def __init__(self, out: BinaryIO, err: TextIO, style: LogStyle) -> None:
        """Create a sink.

        Args:
            out: Takes the log and other output of the command; buffered, so that it writes all or raises.
            err: Takes sentences.
            style: The way in which the log is shown.
        """
        self._out = out
        self._err = err
        self._prefix = style.prefix
        self._lock = threading.RLock()
        self._log = LogLines(self._write, self._lock, style)
        self._broken = False
        self._reporter = Reporter()
        self._activities = Activities()

    def emit(self, event: events.Event) -> None:
        """Take one event.

        Raises:
            BrokenPipeError: the reader of the output has gone.
            OSError: the output cannot be written (a full disk).
        """
        with self._lock:
            if isinstance(event, events.LogChunk):
                self._log.add(event)
            elif isinstance(event, events.CommandOutput):
                self._command_output(event)
            else:
                self._report(event)

    def close(self) -> None:
        """Write unfinished lines; the streams stay open."""
        with self._lock, suppress(BrokenPipeError):
            self._log.finish()

    def _report(self, event: events.Event) -> None:
        """Write the message or the report of an event."""
        self._log.compare(event)
        if not isinstance(event, (events.TaskState, events.Progress, events.Usage)):
            self._log.flush()
        if isinstance(event, (events.ResultsFound, events.ResultsAtRisk)):
            self._print(format_report(event, read_width(self._err)))
            return
        self._write(format_report(event, read_width(self._out)).encode("utf-8", "replace"))
        activity = self._activities.message(event)
        text = self._reporter.message(event) or activity
        if isinstance(event, events.JobResult) and event.outcome is not events.Outcome.SUCCEEDED:
            return  # the error at the end of the command reports the same
        if text:
            width = read_width(self._err)
            self._print("".join(wrap_text(line, width) + "\n" for line in text.split("\n")))
        if isinstance(event, events.HangInspection):
            self._print(format_inspection(event))

    def _command_output(self, output: events.CommandOutput) -> None:
        name = fold(output.hosts)
        if output.stream == "stdout":
            self._log.add(events.LogChunk(name, name, 1, 0, output.data))
            return
        lines = output.data.decode("utf-8", "replace").removesuffix("\n").split("\n")
        prefix = f"{name} | " if self._prefix else ""
        self._print("".join(f"{prefix}{render_line(line)}\n" for line in lines))

    def _print(self, text: str) -> None:
        print(text, end="", file=self._err, flush=True)

    def _write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            self._out.write(data)
            self._out.flush()
        except BrokenPipeError:
            self._broken = True
            raise
