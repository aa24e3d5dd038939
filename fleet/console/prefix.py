"""The tasks that wrote a line of the log: each line starts with them, and equal lines of all become one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from fleet.console.formatting import choose_color, paint

WINDOW_S = 0.3  # in which all tasks print the same line
WAITING_MAX = 500  # lines
_DURATION = re.compile(r"\b\d+(?:\.\d+)?(?:us|ms|s)(?:/(?:step|epoch|sample))?(?![\w.])")  # as Keras prints them


@lru_cache(1024)
def format_prefix(tasks: tuple[str, ...], total: int = 1, width: int = 0, *, color: bool = False) -> str:
    """Return ``worker-0 | ``, ``all 8 | ``, or ``31 of 32 | ``.

    Args:
        tasks: The tasks that wrote the line.
        total: Number of tasks whose lines are compared.
        width: Smallest width of the name.
        color: True if the prefix has the color of its task.
    """
    name, style = tasks[0], choose_color(tasks[0])
    if len(tasks) > 1:
        name, style = (f"all {total}" if len(tasks) == total else f"{len(tasks)} of {total}"), "bold"
    return paint(f"{name:{width}} |", style if color else "") + " "


@dataclass
class _Entry:
    """Lines that differ only in durations, by task."""

    key: str
    at: float
    lines: dict[str, str] = field(default_factory=dict)


class Repeats:
    """Holds lines for a short time, and passes each on once if all tasks but a few have printed it.

    Lines that differ only in durations (``305ms/step``) count as the same; the first one is passed on. The lines of
    each task keep their order. Lines that fewer tasks print are passed on unchanged.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Hold nothing yet; `window_s`: time in which all tasks print the same line."""
        self._window_s = window_s
        self._entries: list[_Entry] = []

    @property
    def is_waiting(self) -> bool:
        """Return True if lines are held."""
        return bool(self._entries)

    def add(self, lines: Iterable[tuple[str, str]], tasks: Set[str], now: float) -> list[tuple[Sequence[str], str]]:
        """Return the lines that are due, each with the tasks that printed it.

        Args:
            lines: Further lines, with the task of each.
            tasks: Tasks whose lines are compared; with less than two, nothing is held.
            now: Time in seconds.
        """
        due = self._take_due(tasks, now)
        for task, line in lines:
            self._add(task, line, now)
        return due + self._take_due(tasks, now)

    def _take_due(self, tasks: Set[str], now: float) -> list[tuple[Sequence[str], str]]:
        due = len(self._entries) - WAITING_MAX if len(tasks) > 1 else len(self._entries)
        count = 0
        for entry in self._entries:
            if count >= due and now - entry.at < self._window_s and not _is_complete(entry, tasks):
                break
            count += 1
        return self._take(count, tasks)

    def flush(self, tasks: Set[str]) -> list[tuple[Sequence[str], str]]:
        """Return all lines that are held."""
        return self._take(len(self._entries), tasks)

    def _add(self, task: str, line: str, now: float) -> None:
        """Add a line to the waiting line with the same text, if that does not move it before another of its task."""
        match, key = None, _DURATION.sub("", line)
        for entry in reversed(self._entries):
            if task in entry.lines:
                break
            if entry.key == key:
                match = entry
        if match is None:
            match = _Entry(key, now)
            self._entries.append(match)
        match.lines[task] = line

    def _take(self, count: int, tasks: Set[str]) -> list[tuple[Sequence[str], str]]:
        taken, self._entries = self._entries[:count], self._entries[count:]
        lines: list[tuple[Sequence[str], str]] = []
        for entry in taken:
            missing = len(tasks - entry.lines.keys())
            few = max(1, len(tasks) // 8) if len(entry.lines) > 2 else 0
            if len(entry.lines) > 1 and entry.lines.keys() <= tasks and missing <= few:
                lines.append((list(entry.lines), next(iter(entry.lines.values()))))
            else:
                lines += [([task], line) for task, line in entry.lines.items()]
        return lines


def _is_complete(entry: _Entry, tasks: Set[str]) -> bool:
    return len(tasks) > 1 and entry.lines.keys() == tasks
