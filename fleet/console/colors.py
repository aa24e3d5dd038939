"""Colors: that of each task, and whether a stream accepts colors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import IO, Any

from rich.color import ColorSystem
from rich.style import Style

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
    """Return `text` in a style of rich, then plain again; unchanged if either is empty."""
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if text and style else text


def is_smart(stream: IO[Any], environ: Mapping[str, str]) -> bool:
    """Return True if `stream` is a terminal that can move its cursor."""
    return environ.get("TERM", "") not in ("", "dumb", "unknown") and stream.isatty()


def accepts_color(stream: IO[Any], environ: Mapping[str, str]) -> bool:
    """Return True if `stream` is a terminal that accepts colors (NO_COLOR, https://no-color.org)."""
    return not environ.get("NO_COLOR") and is_smart(stream, environ)
