"""Paragraphs and paths that fit a terminal."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import IO, Any

from rich.cells import cell_len

INDENT = "  "
_DEFAULT_SIZE = os.terminal_size((80, 24))
PROSE_MAX = 80  # columns; longer lines are hard to read
_COMMAND = re.compile(r"`[^`]*`")
_HELD_SPACE = "\0"  # a space at which no line ends


def read_size(stream: IO[Any]) -> os.terminal_size:
    """Return the present size of a terminal; 80 columns and 24 lines if it is unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _DEFAULT_SIZE
    return size if size.columns > 0 and size.lines > 0 else _DEFAULT_SIZE


def read_width(stream: IO[Any]) -> int:
    """Return the columns of a terminal, 80 if they are unknown; 0 if `stream` is not a terminal."""
    return read_size(stream).columns if stream.isatty() else 0


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
    while max(map(cell_len, shown), default=0) > width and dropped < max(path.count("/") for _, _, path in pairs):
        dropped += 1
        shown = [f"{host}:{_drop_directories(path, dropped)}" for host, _, path in pairs]
    return shown


def _drop_directories(path: str, count: int) -> str:
    parts = path.split("/")
    return "/".join(["…", *parts[min(count, len(parts) - 1) :]])
