"""Log output between two refreshes of the screen, bounded however fast it comes; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fleet.console.log_lines import LogText
from fleet.events import LogChunk
from fleet.jobs.following.log_view import is_startup_line

_BYTES_MAX = 8 * 1024 * 1024  # waiting to be shown: a terminal may be stopped with Ctrl-S
_KEPT_LINES = 20  # of each task, when most are left out: a flood often ends with the reason for it


@dataclass(frozen=True)
class Batch:
    """The content of the backlog.

    Attributes:
        lines: Task and line, in the order in which the output came.
        dropped: Lines before these that are left out.
    """

    lines: tuple[tuple[str, str], ...] = ()
    dropped: int = 0


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
        self._last: dict[
            str, tuple[int, bool]
        ] = {}  # attempt of a task's latest chunk, and whether it ends in a line
        self._chunks: deque[tuple[str, bytes, int]] = deque()  # task, data, newlines in it
        self._bytes = 0
        self._newlines = 0
        self._dropped = 0

    def add(self, chunk: LogChunk) -> None:
        """Take output; the oldest is left out when too much waits."""
        if not chunk.data:
            return
        data = chunk.data
        attempt, unfinished = self._last.get(chunk.task, (chunk.attempt, False))
        if attempt != chunk.attempt and unfinished:
            data = b"\n" + data
        self._last[chunk.task] = (chunk.attempt, not data.endswith(b"\n"))
        newlines = data.count(b"\n")
        self._chunks.append((chunk.task, data, newlines))
        self._bytes += len(data)
        self._newlines += newlines
        while self._bytes > _BYTES_MAX and len(self._chunks) > 1:
            self._drop_oldest()

    def take(self, lines_max: int) -> Batch:
        """Return the waiting output; only the ends of the tasks' output if it exceeds `lines_max` lines."""
        if self._newlines > lines_max:
            self._keep_ends()
        shown: list[tuple[str, str]] = []
        for task, data, _ in self._chunks:
            for line in self._text(task).feed(data):
                if self._hides(line):
                    self.hidden += 1
                else:
                    shown.append((task, line))
        batch = Batch(tuple(shown), self._dropped)
        self._chunks.clear()
        self._bytes = self._newlines = self._dropped = 0
        return batch

    def finish(self) -> Batch:
        """Return the unfinished lines of all tasks at the end of the output."""
        ends = ((task, line) for task, text in self._texts.items() for line in text.finish())
        return Batch(tuple((task, line) for task, line in ends if not self._hides(line)))

    def _hides(self, line: str) -> bool:
        return not self._startup and is_startup_line(line)

    def bars(self) -> dict[str, str]:
        """Progress bars that tasks are drawing, by name of the task."""
        return {task: bar for task, text in self._texts.items() if (bar := text.bar)}

    def _text(self, task: str) -> LogText:
        return self._texts.setdefault(task, LogText())

    def _drop_oldest(self) -> None:
        task, data, newlines = self._chunks.popleft()
        self._bytes -= len(data)
        self._newlines -= newlines
        self._dropped += newlines
        self._text(task).skip()

    def _keep_ends(self) -> None:
        kept: deque[tuple[str, bytes, int]] = deque()
        room: dict[str, int] = {}
        cut: set[str] = set()
        for task, data, newlines in reversed(self._chunks):
            kept_lines = room.setdefault(task, _KEPT_LINES)
            if task in cut:
                self._dropped += newlines
            elif newlines <= kept_lines:
                room[task] = kept_lines - newlines
                kept.appendleft((task, data, newlines))
            else:
                self._dropped += newlines - kept_lines
                cut.add(task)
                kept.appendleft((task, _last_lines(data, kept_lines), kept_lines))
        for task in cut:
            self._text(task).skip()
        self._chunks = kept


def _last_lines(data: bytes, count: int) -> bytes:
    """Return the last `count` complete lines of `data`, the newline before them, and the rest."""
    start = len(data)
    for _ in range(count + 1):
        start = data.rfind(b"\n", 0, start)
    return data[start:]
