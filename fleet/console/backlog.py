"""Log output between two frames of the screen, bounded however fast it comes; pure."""

from __future__ import annotations

from collections import Counter, deque

from fleet.console.log_lines import LogText
from fleet.events import LogChunk
from fleet.jobs.following.log_view import is_startup_line

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
