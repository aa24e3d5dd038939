"""Plain lines for pipes, files, and CI: the log on standard output, messages on standard error."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO, TextIO

from fleet.console.colors import choose_color, paint
from fleet.console.log_lines import LogText, render_line
from fleet.console.messages import Activities, Reporter, format_inspection
from fleet.console.pages import read_width, wrap_text
from fleet.console.reports import format_report
from fleet.events import (
    CommandOutput,
    Event,
    HangInspection,
    JobResult,
    LogChunk,
    Outcome,
    Phase,
    PushProgress,
    ResultsAtRisk,
    ResultsFound,
    TaskState,
)
from fleet.folding import fold

_PARTIAL_MAX = 64 * 1024  # bytes of an unfinished line that are held back


def _is_reported_as_error(event: Event) -> bool:
    """Return True if the error at the end of the command reports the same."""
    return isinstance(event, JobResult) and event.outcome is not Outcome.SUCCEEDED


class LinesSink:
    r"""Write each line of the log as ``worker-0 | text``, and events as sentences.

    After the prefix a line is what the task wrote, byte for byte: it is not decoded, and ends only at ``\n``. A
    line is written when it is complete, or in pieces of 64 KiB, or when its task ends. If another task's output
    comes between two such pieces, the second starts a new line with its own prefix. Without prefixes, the bytes are
    passed on as they come, and nothing is added.

    If the reader of standard output goes away (``| head``), emit raises BrokenPipeError and drops what it could not
    write; from then on, emit writes nothing more there, and raises nothing, and close raises nothing either.
    """

    def __init__(self, out: BinaryIO, err: TextIO, *, prefix: bool, color: bool, terminal: bool = False) -> None:
        """Create a sink.

        Args:
            out: Takes the log and other output of the command; buffered, so that it writes all or raises.
            err: Takes sentences.
            prefix: True if lines of the log start with their task.
            color: True if prefixes are colored.
            terminal: `out` is a terminal. Then output is not passed on byte for byte: a task's control sequences
                must not reach it.
        """
        self._out = out
        self._err = err
        self._prefix = prefix
        self._color = color
        self._terminal = terminal
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
        if isinstance(event, LogChunk):
            self._log(event)
            return
        if isinstance(event, CommandOutput):
            self._command_output(event)
            return
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
        with suppress(BrokenPipeError):
            for task in sorted({*self._partial, *self._texts}):
                self._release(task)
            self._end_open_line()

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
        if not self._prefix:
            self._write(data)
            return
        data = self._partial.pop(task, b"") + data
        end = data.rfind(b"\n") + 1
        if end:
            self._lines(task, data[:end])
        rest = data[end:]
        if len(rest) >= _PARTIAL_MAX:
            self._piece(task, rest)
        elif rest:
            self._partial[task] = rest

    def _lines(self, task: str, data: bytes) -> None:
        """Write `data`, which ends with a newline."""
        prefix = self._prefix_of(task)
        body = memoryview(data.replace(b"\n", b"\n" + prefix))[: -len(prefix)]
        self._write(b"".join((self._start(task, prefix), body)))
        self._open = ""

    def _piece(self, task: str, data: bytes) -> None:
        """Write `data`, which is a piece of one line."""
        self._write(self._start(task, self._prefix_of(task)) + data)
        self._open = task

    def _start(self, task: str, prefix: bytes) -> bytes:
        if self._open == task:
            return b""
        return b"\n" + prefix if self._open else prefix

    def _release(self, task: str) -> None:
        partial = self._partial.pop(task, b"")
        if task in self._texts:
            partial += "\n".join(self._texts[task].finish()).encode("utf-8", "replace")
        if partial and self._prefix:
            self._piece(task, partial)
        elif partial:
            self._write(partial)

    def _end_open_line(self) -> None:
        if self._open:
            self._write(b"\n")
            self._open = ""

    def _clean(self, task: str, data: bytes) -> bytes:
        lines = self._texts.setdefault(task, LogText()).feed(data)
        return "".join(line + "\n" for line in lines).encode("utf-8", "replace")

    def _prefix_of(self, task: str) -> bytes:
        prefix = f"{task} |"
        return (paint(prefix, choose_color(task)) if self._color else prefix).encode("utf-8", "replace") + b" "

    def _write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            self._out.write(data)
            self._out.flush()
        except BrokenPipeError:
            self._broken = True
            raise
