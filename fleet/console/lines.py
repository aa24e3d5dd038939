"""Plain lines for pipes, files, and CI: the log on standard output, messages on standard error."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import BinaryIO, TextIO

from fleet.console.log_lines import LogText, render_line
from fleet.console.messages import Activities, Reporter, format_inspection
from fleet.console.pages import read_width, wrap_text
from fleet.console.prefix import format_prefix
from fleet.console.repeats import WAITING_MAX, WINDOW_S, Repeats
from fleet.console.reports import format_report
from fleet.errors import fold
from fleet.events import (
    CommandOutput,
    Event,
    HangInspection,
    JobResult,
    JobStarted,
    LogChunk,
    Outcome,
    Phase,
    Progress,
    PushProgress,
    ResultsAtRisk,
    ResultsFound,
    TaskState,
    Usage,
)
from fleet.jobs.following.log_view import final_lines, is_startup_line, latest_state, may_have_startup_line
from provision.quantities import counted

_PARTIAL_MAX = 64 * 1024  # bytes of an unfinished line that are held back


def _is_reported_as_error(event: Event) -> bool:
    """Return True if the error at the end of the command reports the same."""
    return isinstance(event, JobResult) and event.outcome is not Outcome.SUCCEEDED


def _trains(task: str) -> bool:
    return bool(task) and not task.startswith(("ps-", "evaluator-"))


class LinesSink:
    r"""Write each line of the log as ``worker-0 | text``, and events as sentences.

    A line ends only at ``\n``. It is written when it is complete, or in pieces of 64 KiB, or when its task ends. If
    another task's output comes between two such pieces, the second starts a new line with its own prefix. Text that
    carriage returns and backspaces replace is left out, TensorFlow's startup messages too, and a line that all tasks
    write at the same time is written once. All other bytes stay as they are.

    With `raw`, a line is what the task wrote, byte for byte; without prefixes, too, the bytes are passed on as they
    come, and nothing is added.

    If the reader of standard output goes away (``| head``), emit raises BrokenPipeError and drops what it could not
    write; from then on, emit writes nothing more there, and raises nothing, and close raises nothing either.
    """

    def __init__(
        self, out: BinaryIO, err: TextIO, *, prefix: bool, color: bool, terminal: bool = False, raw: bool = False
    ) -> None:
        """Create a sink.

        Args:
            out: Takes the log and other output of the command; buffered, so that it writes all or raises.
            err: Takes sentences.
            prefix: True if lines of the log start with their task.
            color: True if prefixes are colored.
            terminal: `out` is a terminal. Then output is not passed on byte for byte: a task's control sequences
                must not reach it.
            raw: Pass output on byte for byte.
        """
        self._out = out
        self._err = err
        self._prefix = prefix
        self._color = color
        self._terminal = terminal
        self._raw = raw
        self._lock = threading.RLock()  # a timer writes lines that wait for the same lines of other tasks
        self._timer: threading.Timer | None = None
        self._repeats = Repeats()
        self._at = 0.0  # the newest time of output
        self._compared: tuple[int, set[str]] = (0, set())  # attempt, and its tasks that print the same lines
        self._hidden = 0  # startup messages
        self._is_gone = False  # the timer could not write
        self._texts: dict[str, LogText] = {}  # for a terminal
        self._partial: dict[str, bytes] = {}
        self._attempts: dict[str, int] = {}
        self._open = ""  # the task whose unfinished line is at the end of the output
        self._broken = False
        self._pushed: set[str] = set()  # hosts
        self._reporter = Reporter()
        self._activities = Activities()

    def emit(self, event: Event) -> None:
        """Take one event.

        Raises:
            BrokenPipeError: the reader of the output has gone.
            OSError: the output cannot be written (a full disk).
        """
        with self._lock:
            self._emit(event)
            if self._is_gone:
                self._is_gone = False
                raise BrokenPipeError

    def _emit(self, event: Event) -> None:
        if isinstance(event, LogChunk):
            self._log(event)
            return
        if isinstance(event, CommandOutput):
            self._command_output(event)
            return
        self._compare(event)
        if not isinstance(event, (TaskState, Progress, Usage)):
            self._flush()
        if isinstance(event, JobResult):
            self._report_hidden()
        if isinstance(event, TaskState) and event.phase is Phase.EXITED:
            self._release(event.task)
        if isinstance(event, (ResultsFound, ResultsAtRisk)):
            print(format_report(event, read_width(self._err)), end="", file=self._err, flush=True)
            return
        self._write(format_report(event, read_width(self._out)).encode("utf-8", "replace"))
        if isinstance(event, PushProgress) and event.sent >= event.total:
            if event.host in self._pushed:
                return
            self._pushed.add(event.host)
        activity = self._activities.message(event)
        text = self._reporter.message(event) or activity
        if text and not _is_reported_as_error(event):
            details = "\n" + format_inspection(event).rstrip("\n") if isinstance(event, HangInspection) else ""
            width = read_width(self._err)
            lines = [wrap_text(line, width) for line in text.split("\n")]
            print(("\n".join(lines) + details).rstrip("\n"), file=self._err, flush=True)

    def close(self) -> None:
        """Write unfinished lines; the streams stay open."""
        with self._lock, suppress(BrokenPipeError):
            self._flush()
            for task in sorted({*self._partial, *self._texts}):
                self._release(task)
            self._end_open_line()
            self._report_hidden()

    def _command_output(self, output: CommandOutput) -> None:
        name = fold(output.hosts)
        if output.stream == "stdout":
            self._log(LogChunk(name, name, 1, 0, output.data))
            return
        lines = output.data.decode("utf-8", "replace").removesuffix("\n").split("\n")
        prefix = f"{name} | " if self._prefix else ""
        print("\n".join(prefix + render_line(line) for line in lines), file=self._err, flush=True)

    def _log(self, chunk: LogChunk) -> None:
        task = chunk.task
        if self._attempts.setdefault(task, chunk.attempt) != chunk.attempt:
            self._attempts[task] = chunk.attempt
            self._release(task)
            self._end_open_line()
        data = self._clean(task, chunk.data) if self._terminal else chunk.data
        if self._raw and not self._prefix:
            self._write(data)
            return
        data = self._partial.pop(task, b"") + data
        end = data.rfind(b"\n") + 1
        if end and self._raw:
            self._lines(task, data[:end])
        elif end:
            self._at = max(self._at, chunk.at)
            self._final_lines(task, final_lines(data[:end]))
        rest = data[end:]
        if len(rest) >= _PARTIAL_MAX and not self._raw:
            rest = latest_state(rest)
        if len(rest) >= _PARTIAL_MAX:
            self._flush()
            self._piece(task, rest)
        elif rest:
            self._partial[task] = rest

    def _final_lines(self, task: str, data: bytes) -> None:
        """Write `data`, which ends with a newline, without startup messages; hold what other tasks may write, too."""
        if self._open == task:
            end = data.find(b"\n") + 1
            self._lines(task, data[:end])
            data = data[end:]
        if may_have_startup_line(data):
            lines = data.splitlines(keepends=True)
            shown = [line for line in lines if not is_startup_line(line.decode("utf-8", "replace").rstrip())]
            self._hidden += len(lines) - len(shown)
            data = b"".join(shown)
        tasks = self._compared[1]
        if not self._prefix or len(tasks) < 2 or data.count(b"\n") > WAITING_MAX:
            self._flush()
            self._lines(task, data)
            return
        texts = data.decode("utf-8", "surrogateescape").split("\n")[:-1]
        due = self._repeats.add([], tasks, self._at)
        self._write_folded([*due, *self._repeats.add([(task, text) for text in texts], tasks, self._at)])
        if self._repeats.is_waiting and self._timer is None:
            self._timer = threading.Timer(WINDOW_S, self._end_wait)
            self._timer.daemon = True
            self._timer.start()

    def _compare(self, event: Event) -> None:
        """Collect the tasks whose lines are compared: those that train together in the newest attempt."""
        if isinstance(event, JobStarted):
            self._compared = (event.attempt, {name for member in event.members if _trains(name := member.task)})
        elif isinstance(event, TaskState) and event.attempt >= self._compared[0] and _trains(event.task):
            attempt, tasks = self._compared
            self._compared = (event.attempt, {event.task} | (tasks if event.attempt == attempt else set()))

    def _end_wait(self) -> None:
        with self._lock:
            try:
                self._flush()
            except OSError:
                self._is_gone = True

    def _flush(self) -> None:
        """Write the lines that wait for the same lines of other tasks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._repeats.is_waiting:
            self._write_folded(self._repeats.flush(self._compared[1]))

    def _write_folded(self, lines: Iterable[tuple[Sequence[str], str]]) -> None:
        texts = [self._prefix_of(*tasks) + line.encode("utf-8", "surrogateescape") + b"\n" for tasks, line in lines]
        if texts:
            self._end_open_line()
            self._write(b"".join(texts))

    def _report_hidden(self) -> None:
        if self._hidden:
            lines = counted(self._hidden, "TensorFlow startup line")
            print(f"{lines} hidden; --raw shows everything", file=self._err, flush=True)
            self._hidden = 0

    def _lines(self, task: str, data: bytes) -> None:
        """Write `data`, which is empty or ends with a newline."""
        if data:
            prefix = self._prefix_of(task)
            body = data.replace(b"\n", b"\n" + prefix)
            self._write(b"".join((self._start(task, prefix), memoryview(body)[: len(body) - len(prefix)])))
            self._open = ""

    def _piece(self, task: str, data: bytes) -> None:
        """Write `data`, which is a piece of one line."""
        self._write(self._start(task, self._prefix_of(task)) + data)
        self._open = task

    def _start(self, task: str, prefix: bytes) -> bytes:
        if self._open == task:
            return b""
        return b"\n" + prefix if self._open and self._prefix else prefix

    def _release(self, task: str) -> None:
        partial = self._partial.pop(task, b"")
        if task in self._texts:
            partial += "\n".join(self._texts[task].finish()).encode("utf-8", "replace")
        if partial:
            self._flush()
            self._piece(task, partial if self._raw else final_lines(partial))

    def _end_open_line(self) -> None:
        if self._open:
            self._write(b"\n" if self._prefix else b"")
            self._open = ""

    def _clean(self, task: str, data: bytes) -> bytes:
        lines = self._texts.setdefault(task, LogText()).feed(data)
        return "".join(line + "\n" for line in lines).encode("utf-8", "replace")

    def _prefix_of(self, *tasks: str) -> bytes:
        if not self._prefix:
            return b""
        return format_prefix(tasks, len(self._compared[1]), color=self._color).encode("utf-8", "replace")

    def _write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            self._out.write(data)
            self._out.flush()
        except BrokenPipeError:
            self._broken = True
            raise
