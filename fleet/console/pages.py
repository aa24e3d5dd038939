"""Paragraphs, tables, and paths that fit a terminal."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from fleet.console.columns import Column, Span, arrange_table, choose, measure_text, render
from fleet.console.log_lines import clean

INDENT = "  "
_PROSE_MAX = 80  # columns; longer lines are hard to read
_COMMAND = re.compile(r"`[^`]*`")
_HELD_SPACE = "\0"  # a space at which no line ends


def read_width(stream: IO[Any]) -> int:
    """Return the columns of a terminal, 80 if they are unknown; 0 if `stream` is not a terminal."""
    if not stream.isatty():
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PROSE_MAX
    except (OSError, ValueError):
        return _PROSE_MAX


def wrap_text(text: str, width: int, first: str = "", indent: str = "") -> str:
    """Return `text` in lines of up to `width` columns, without a final newline.

    Lines end at spaces, not at hyphens, which names and options have, and not within a command between backticks.

    Args:
        text: One paragraph.
        width: Columns of the terminal; 0: one line.
        first: Indentation of the first line.
        indent: Indentation of the other lines.
    """
    if not width:
        return first + text
    held = _COMMAND.sub(lambda command: command[0].replace(" ", _HELD_SPACE), text)
    lines = textwrap.wrap(
        held, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace(_HELD_SPACE, " ")


def shorten_locations(locations: Sequence[str], width: int) -> list[str]:
    """Return locations ``HOST:PATH``, without the first directories of their paths if `width` is too small for them.

    All locations lack the same number of directories, which a mark replaces. The last component of a path is never
    left out.
    """
    pairs = [location.partition(":") for location in locations]
    shown = list(locations)
    dropped = 0
    while max(map(measure_text, shown), default=0) > width and dropped < max(path.count("/") for _, _, path in pairs):
        dropped += 1
        shown = [f"{host}:{_drop_directories(path, dropped)}" for host, _, path in pairs]
    return shown


def _drop_directories(path: str, count: int) -> str:
    parts = path.split("/")
    return "/".join(["…", *parts[min(count, len(parts) - 1) :]])


@dataclass(frozen=True)
class Page:
    """Lay out a report.

    Attributes:
        columns: Columns of the terminal; 0 if the output is not a terminal.
    """

    columns: int = 0

    @property
    def width(self) -> int:
        """Return the columns of a paragraph."""
        return min(self.columns or _PROSE_MAX, _PROSE_MAX)

    @property
    def table_width(self) -> int:
        """Return the columns of a table that uses the whole terminal."""
        return self.columns or _PROSE_MAX

    def paragraph(self, text: str, first: str = "", indent: str = "") -> str:
        """Return a paragraph: the indentation of its first line is `first`, that of the others `indent`."""
        return wrap_text(clean(text), self.width, first, indent) + "\n"

    def item(self, mark: str, words: str) -> str:
        """Format a status word and a text."""
        return self.paragraph(f"{mark:8} {words}", indent=" " * 9)

    def table(self, columns: Sequence[Column]) -> str:
        """Return the columns that fit as a table with an indentation."""
        room = self.width - len(INDENT)
        lines = arrange_table(choose(columns, room), room)
        return render(((Span(INDENT), *line) for line in lines), color=False)

    def locations(self, locations: Sequence[str], used: int) -> list[str]:
        """Return locations ``HOST:PATH`` that fit next to `used` columns; whole if the output is not a terminal."""
        cleaned = [clean(location) for location in locations]
        return shorten_locations(cleaned, self.columns - used) if self.columns else cleaned
