"""Colors: the styles, the color of each task, and whether a stream accepts colors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import IO, Any

# Name of a style (as rich spells it, too) → parameters of the terminal's SGR sequence.
SGR = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "bright_blue": "94",
    "bright_magenta": "95",
    "bright_cyan": "96",
    "bold red": "1;31",
}

# Red and yellow are reserved for errors and warnings.
_TASK_COLORS = ("cyan", "magenta", "bright_blue", "green", "bright_cyan", "bright_magenta", "blue")


def choose_color(task: str) -> str:
    """Return the color of a task: the same in every session, different from its neighbours'."""
    kind, _, index = task.rpartition("-")
    if not (index.isascii() and index.isdigit()):
        return _TASK_COLORS[zlib.crc32(task.encode("utf-8", "replace")) % len(_TASK_COLORS)]
    first = 0 if kind == "worker" else zlib.crc32(kind.encode("utf-8", "replace"))
    return _TASK_COLORS[(first + int(index[-9:])) % len(_TASK_COLORS)]


def paint(text: str, style: str) -> str:
    """Return `text` in a style of SGR, then plain again; unchanged if either is empty."""
    return f"\x1b[{SGR[style]}m{text}\x1b[0m" if text and style else text


def is_smart(stream: IO[Any], environ: Mapping[str, str]) -> bool:
    """Return True if `stream` is a terminal that can move its cursor."""
    return environ.get("TERM", "") not in ("", "dumb", "unknown") and stream.isatty()


def accepts_color(stream: IO[Any], environ: Mapping[str, str]) -> bool:
    """Return True if `stream` is a terminal that accepts colors (NO_COLOR, https://no-color.org)."""
    return not environ.get("NO_COLOR") and is_smart(stream, environ)
