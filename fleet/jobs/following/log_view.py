"""The part of a job's output that `fleet logs` shows: the last lines, matching lines, times before lines; pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter

from fleet.errors import UsageError
from fleet.events import Level, LogChunk, Note
from provision.bounds import CpuLimitError, limit_cpu
from provision.quantities import counted
from train.agent.protocol.records import LATEST_S

# Lines that agents send in addition to the requested last ones, because startup messages among them are hidden.
_MORE_LINES = 256
_TAIL_BYTES = 64 << 20  # of the last lines that are held
_LINE_OVERHEAD = 400  # bytes of a held line in addition to its text
_LINE_BYTES = 64 << 10  # of an unfinished line that are held
_MATCH_S = 5.0  # of CPU time for the lines of a chunk
_STARTUP_LENGTH = 512  # characters of a line in which a startup message is recognized

_STARTUP = re.compile(
    # Written in C++: I0000 00:00:1700000000.000000 123 file.cc:1] text. The same from Python is the script's own.
    r"I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w/.-]+\.(?:cc|h):\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (?:tensorflow|external|xla|tsl)/\S+\.(?:cc|h):\d+\] "  # up to 2.20
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|/job:\w+/replica:\d+/task:\d+$"  # the rest of a list of tasks
    r"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags"
    r"|.*\.cc:\d+\] .*(?:"
    r"Unable to register cu\w+ factory: Attempting to register factory"
    r"|computation placer already registered"
    r"|failed call to cuInit: .*\(303\)"  # no driver at all: a host without a GPU
    r"|Could not find cuda drivers on your machine"
    r"|oneDNN custom operations are on\."
    r"|GeneratorDatasetOp::Dataset will not be optimized"
    r"|Memory patch applied: M_TRIM_THRESHOLD)"
)
_STARTUP_PARTS = (b"before absl::InitializeLog()", b"/replica:", b"To enable the following instructions: ")
_REDRAWN = re.compile(rb"\r(?=[^\r\n])")  # the text after it replaces the line
_ERASURE = re.compile(r"([^\x08]*)(\x08*)")
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")


def is_startup_line(line: str) -> bool:
    """Return True if `line` is TensorFlow's startup output or a message of level INFO."""
    return _STARTUP.match(line) is not None


def final_state(line: str) -> str:
    """Return what a terminal shows of a line that carriage returns and backspaces redraw."""
    line = line.rstrip("\r")
    line = line[line.rfind("\r") + 1 :]
    if "\x08" not in line:
        return line
    shown: list[str] = []
    erased = 0
    for text, erasures in _ERASURE.findall(line):
        if text:
            del shown[max(0, len(shown) - erased) :]
            shown.extend(text)
            erased = 0
        erased += len(erasures)
    return "".join(shown)


def latest_state(held: bytes) -> bytes:
    """Return an unfinished line from where it was redrawn last; a progress bar stays recognizable."""
    end = len(held.rstrip(b"\r\x08"))
    return held[max(0, held.rfind(b"\r", 0, end), held.rfind(b"\x08", 0, end)) :]


def final_lines(data: bytes) -> bytes:
    """Return lines in their final state; all other bytes stay as they are."""
    if b"\r" not in data and b"\x08" not in data:
        return data
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return "\n".join([final_state(line) for line in lines]).encode("utf-8", "surrogateescape")


def may_have_startup_line(data: bytes) -> bool:
    """Return True if `data` contains a part that each startup line has: much faster than a look at each line."""
    is_from_cpp = b"]" in data and (b".cc:" in data or b".h:" in data)
    return is_from_cpp or (b":" in data and any(part in data for part in _STARTUP_PARTS))


@dataclass(frozen=True)
class Selection:
    """The part of the output to show.

    Attributes:
        lines: Number of lines at the end of the newest attempt, of all tasks together; None: all lines.
        since: Only output since this time, seconds since the epoch; 0: all of it.
        pattern: Only lines in which it matches.
        timestamps: Put the time before each line.
        startup: Show TensorFlow's startup messages, too.
    """

    lines: int | None = None
    since: float = 0.0
    pattern: re.Pattern[str] | None = None
    timestamps: bool = False
    startup: bool = True

    @property
    def reads_all(self) -> bool:
        """Return whether all output of all attempts is read."""
        return self.lines is None and not self.since

    @property
    def is_by_line(self) -> bool:
        """Return whether the output is divided into lines, because not all of it is shown as it is."""
        return self.lines is not None or self.pattern is not None or self.timestamps or not self.startup

    @property
    def tail_lines(self) -> int:
        """Return the number of last lines to request from each host; -1: all."""
        if self.lines is None or (self.pattern is not None and self.lines):
            return -1
        return self.lines if self.startup or not self.lines else self.lines + _MORE_LINES


EVERYTHING = Selection()


@dataclass
class _Text:
    """The unfinished line of a task.

    Attributes:
        position: Attempt and offset of the next chunk.
        chunk: The part of it that was not shown yet.
        shows: Whether to show the rest of the line, of which a part was decided on; None: not decided.
    """

    position: tuple[int, int] = (0, 0)
    chunk: LogChunk | None = None
    shows: bool | None = None


@dataclass
class LogView:
    """Selects output, chunk by chunk, in bounded memory.

    Attributes:
        selection: The part to show.
    """

    selection: Selection
    _shown: int = 0  # lines that match, and parts of very long lines
    _hidden: int = 0  # startup messages
    _is_cut: bool = False  # fewer lines than requested are shown, because they need too much memory
    _texts: dict[str, _Text] = field(default_factory=dict)  # by slot
    _tail: deque[LogChunk] | None = None
    _tail_bytes: int = 0

    def __post_init__(self) -> None:
        self._tail = None if self.selection.lines is None else deque()

    def add(self, chunk: LogChunk) -> list[LogChunk]:
        """Return the output to show after a further chunk, whose bytes have one time."""
        if not self.selection.is_by_line:
            return [chunk]
        shown = []
        if chunk.slot in self._texts and self._texts[chunk.slot].position != (chunk.attempt, chunk.offset):
            shown = self.end(chunk.slot)
        text = self._texts.setdefault(chunk.slot, _Text())
        text.position = chunk.attempt, chunk.offset + len(chunk.data)
        return shown + self._hold_tail(self._lines(text, chunk))

    def end(self, slot: str) -> list[LogChunk]:
        """Return the unfinished line of a task that writes no more."""
        line = self._texts.pop(slot, _Text()).chunk
        return self._hold_tail([self._stamped(line)] if line is not None and self._shows(line.data) else [])

    def release(self) -> list[LogChunk]:
        """Return the last whole lines of the stored output, after which new output follows."""
        if self._tail is None:
            return []
        tail, self._tail = list(self._tail), None
        return tail

    def finish(self) -> list[LogChunk]:
        """Return the rest at the end of the output."""
        ends = [chunk for slot in list(self._texts) for chunk in self.end(slot)]
        return self.release() + ends

    def notes(self) -> list[Note]:
        """Return what was left out, at the end of the output."""
        notes, pattern, lines = [], self.selection.pattern, self.selection.lines
        if self._is_cut:
            text = f"fewer than the last {lines} lines are shown: they need too much memory"
            notes.append(Note(f"{text}; fleet logs without --lines shows everything", Level.WARNING))
        if pattern is not None and not self._shown:
            notes.append(Note(f"no line matches {pattern.pattern!r}"))
        if self._hidden and lines is None:
            hidden = counted(self._hidden, "TensorFlow startup line")
            notes.append(Note(f"{hidden} hidden; --raw shows everything"))
        return notes

    def _lines(self, text: _Text, chunk: LogChunk) -> Iterator[LogChunk]:
        """Yield the lines to show that a chunk completes; hold its unfinished line."""
        first = chunk.data.find(b"\n") + 1 or len(chunk.data)  # the end of the unfinished line
        if text.shows is not None:  # the rest of a line
            if text.shows:
                yield self._stamped(_part(chunk, 0, first), is_rest=True)
            text.shows = None if chunk.data[:first].endswith(b"\n") else text.shows
        elif text.chunk is not None:
            held, text.chunk = text.chunk, None
            yield from self._line(text, held._replace(data=held.data + chunk.data[:first]))
        else:
            first = 0
        end = max(first, chunk.data.rfind(b"\n") + 1)
        if end > first:
            yield from self._whole_lines(_part(chunk, first, end))
        if end < len(chunk.data):
            yield from self._line(text, _part(chunk, end, len(chunk.data)))

    def _whole_lines(self, chunk: LogChunk) -> Iterator[LogChunk]:
        """Yield the lines to show of a chunk of whole lines; adjacent ones together, unless they are counted."""
        may_be_startup = not self.selection.startup and may_have_startup_line(chunk.data)
        if not (self.selection.pattern or self.selection.timestamps or self._tail is not None or may_be_startup):
            self._shown += 1
            yield chunk
            return
        texts = chunk.data.decode("utf-8", "replace").split("\n")[:-1]
        shows = self._show_texts(texts, may_be_startup=may_be_startup)
        offset = 0
        for is_shown, group in groupby(zip(shows, chunk.data.split(b"\n"), strict=False), key=itemgetter(0)):
            lines = [line + b"\n" for _, line in group]
            for data in [b"".join(lines)] if self._tail is None else lines:
                if is_shown:
                    yield self._stamped(_part(chunk, offset, offset + len(data)))
                offset += len(data)

    def _line(self, text: _Text, line: LogChunk) -> Iterator[LogChunk]:
        """Yield a line if it is shown; hold it if that cannot be decided yet."""
        is_whole = line.data.endswith(b"\n")
        if len(line.data) >= _LINE_BYTES and not is_whole and not self.selection.startup:
            line = line._replace(data=latest_state(line.data))
        is_redrawn = b"\r" in line.data or b"\x08" in line.data
        is_bar = is_redrawn and self.selection.pattern is None and self._tail is None
        if not (is_whole or is_bar or len(line.data) >= _LINE_BYTES):
            text.chunk = line
            return
        shows = self._shows(line.data)
        text.shows = None if is_whole else shows
        if shows:
            yield self._stamped(line)

    def _shows(self, line: bytes) -> bool:
        return self._show_texts([line.decode("utf-8", "replace").removesuffix("\n")], may_be_startup=True)[0]

    def _show_texts(self, texts: list[str], *, may_be_startup: bool) -> list[bool]:
        """Return for each line whether it is shown.

        Raises:
            UsageError: the pattern takes too long.
        """
        try:
            with limit_cpu(_MATCH_S):
                return [self._shows_text(text, may_be_startup=may_be_startup) for text in texts]
        except CpuLimitError as error:
            pattern = self.selection.pattern.pattern if self.selection.pattern else ""
            raise UsageError(
                f"--grep {pattern!r:.200} cannot be evaluated: {error} for a part of the log", hint="simplify it"
            ) from None

    def _shows_text(self, text: str, *, may_be_startup: bool) -> bool:
        if may_be_startup and not self.selection.startup and is_startup_line(text[:_STARTUP_LENGTH].rstrip()):
            self._hidden += 1
            return False
        pattern = self.selection.pattern
        state = text if self.selection.startup or pattern is None else final_state(text)
        if pattern is not None and not pattern.search(_COLOR.sub("", state).rstrip()):
            return False
        self._shown += 1
        return True

    def _stamped(self, line: LogChunk, *, is_rest: bool = False) -> LogChunk:
        if not self.selection.timestamps:
            return line
        stamp = format_time(line.at).encode() + b" "
        data = line.data[:-1].replace(b"\n", b"\n" + stamp) + line.data[-1:]
        data = _REDRAWN.sub(b"\r" + stamp, data)
        return line._replace(data=(b"" if is_rest else stamp) + data)

    def _hold_tail(self, lines: Iterable[LogChunk]) -> list[LogChunk]:
        """Return lines; hold them while stored output comes of which only the last lines are shown."""
        if self._tail is None:
            return list(lines)
        most = self.selection.lines or 0
        for line in lines:
            self._tail.append(line)
            self._tail_bytes += len(line.data) + _LINE_OVERHEAD
            while len(self._tail) > most or self._tail_bytes > _TAIL_BYTES:
                self._is_cut |= len(self._tail) <= most
                self._tail_bytes -= len(self._tail.popleft().data) + _LINE_OVERHEAD
        return []


def _part(chunk: LogChunk, begin: int, end: int) -> LogChunk:
    return chunk._replace(offset=chunk.offset + begin, data=chunk.data[begin:end])


def format_time(at: float) -> str:
    """Return a time in UTC as in RFC 3339, with milliseconds; a dash if it is unknown (-1) or too large."""
    if not 0 <= at < LATEST_S:
        return f"{'-':24}"
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
