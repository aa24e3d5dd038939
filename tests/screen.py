"""A terminal for tests: it records what a program writes, and shows the cells as a terminal emulator does (pyte)."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Mapping

import pyte
from pyte.modes import LNM

_HISTORY = 100_000


class Emulator:
    """A terminal emulator with scrollback that wraps lines again when it becomes narrower, as tmux and VTE do."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self._new_screen(width, height)

    def _new_screen(self, width: int, height: int) -> None:
        self._screen = pyte.HistoryScreen(width, height, history=_HISTORY, ratio=0.5)
        self._screen.set_mode(LNM)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        """Take output."""
        self._stream.feed(text)

    def resize(self, width: int, height: int) -> None:
        """Change the size; the cursor must be in the last line that is used."""
        lines = self.lines
        self._new_screen(width, height)
        self.feed("\n".join(lines))

    @property
    def lines(self) -> list[str]:
        """Return all rows up to that of the cursor, those that have scrolled off the screen included."""
        top = [
            "".join(row[column].data for column in range(self._screen.columns)) for row in self._screen.history.top
        ]
        rows = top + self._screen.display[: self._screen.cursor.y + 1]
        return [row.rstrip() for row in rows]

    @property
    def display(self) -> list[str]:
        """Return the rows on the screen."""
        return [row.rstrip() for row in self._screen.display]


class Screen:
    """A terminal that records its output, and the changes of its size.

    Attributes:
        file: The terminal, as a stream.
        environ: Its environment.
    """

    def __init__(
        self, width: int = 80, height: int = 24, *, encoding: str = "utf-8", environ: Mapping[str, str] | None = None
    ) -> None:
        self.file = _Stream(self, encoding)
        self.environ = {"TERM": "xterm-256color", **(environ or {})}
        self._lock = threading.Lock()
        self._records: list[os.terminal_size | str] = [os.terminal_size((width, height))]
        self._size = os.terminal_size((width, height))

    def read_size(self) -> os.terminal_size:
        """Return the present size."""
        return self._size

    def resize(self, width: int, height: int) -> None:
        """Change the size."""
        with self._lock:
            self._size = os.terminal_size((width, height))
            self._records.append(self._size)

    def take(self, text: str) -> None:
        """Record output."""
        with self._lock:
            self._records.append(text)

    @property
    def text(self) -> str:
        """Return all output, control sequences included."""
        with self._lock:
            return "".join(record for record in self._records if isinstance(record, str))

    @property
    def emulator(self) -> Emulator:
        """Return a terminal emulator that has shown everything so far."""
        with self._lock:
            records = list(self._records)
        emulator = Emulator()
        for record in records:
            if isinstance(record, str):
                emulator.feed(record)
            else:
                emulator.resize(record.columns, record.lines)
        return emulator

    @property
    def plain(self) -> list[str]:
        """Return all rows up to that of the cursor, those that have scrolled off the screen included."""
        return self.emulator.lines

    def until(self, condition: str | Callable[[], bool]) -> None:
        """Wait for text in the output, or for a condition."""
        deadline = time.monotonic() + 90
        while not (condition in self.text if isinstance(condition, str) else condition()):
            assert time.monotonic() < deadline, f"{condition!r} not met by {self.text!r}"
            time.sleep(0.01)


class _Stream(io.TextIOWrapper):
    """A stream that passes what is written on to its screen."""

    def __init__(self, screen: Screen, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding)
        self._screen = screen

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._screen.take(text.encode(self.encoding, self.errors or "strict").decode(self.encoding))
        return len(text)
