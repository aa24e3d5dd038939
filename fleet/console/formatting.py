"""Text for people: values, paragraphs, and colors; and the size of a terminal."""

from __future__ import annotations

import math
import os
import re
import textwrap
import zlib
from collections.abc import Mapping
from typing import IO, Any

from rich.color import ColorSystem
from rich.style import Style

from provision.quantities import format_span

INDENT = "  "
PROSE_MAX = 80  # columns; longer lines are hard to read
# Red and yellow are reserved for errors and warnings.
_TASK_COLORS = ("cyan", "magenta", "bright_blue", "green", "bright_cyan", "bright_magenta", "blue")
_DEFAULT_SIZE = os.terminal_size((80, 24))
_COMMAND = re.compile(r"`[^`]*`")
_HELD_SPACE = "\0"  # a space at which no line ends
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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


def format_clock(seconds: float) -> str:
    """Format a running time: ``0:42``, ``12:34``, ``1:02:03``, ``2d 03:04:05``."""
    total = max(0, int(seconds))
    days, hours, minutes, rest = total // 86400, total // 3600 % 24, total // 60 % 60, total % 60
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_lifetime(stop_at: float, delete_at: float, now: float) -> str:
    """Format when a fleet stops, or is deleted if that is earlier: ``stops in 3 h``, ``deleted in 12 min``.

    Args:
        stop_at: Seconds since the epoch; 0: never.
        delete_at: Seconds since the epoch; 0: never.
        now: Seconds since the epoch.

    Returns:
        The text; empty if its lifetime has no end.
    """
    verb, at = ("stops", stop_at) if stop_at and (not delete_at or stop_at < delete_at) else ("deleted", delete_at)
    if not at:
        return ""
    return f"{verb} in {format_span(at - now)}" if at > now else f"{verb} now"


def format_short_span(seconds: float) -> str:
    """Format a duration, with a fraction below 10 seconds: ``0.5 s``, ``12 s``, ``3 min``."""
    return f"{round(seconds, 1):g} s" if seconds < 10 else format_span(seconds)


def format_size(count: float) -> str:
    """Format bytes: ``512 B``, ``5.0 MiB``."""
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:  # 1000: never four digits
        count /= 1024
        power += 1
    return f"{int(count)} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"


def format_short_size(count: float) -> str:
    """Format bytes in at most five characters: ``512B``, ``1.2G``, ``117M``; empty if unknown (-1)."""
    if count < 0:
        return ""
    number, unit = format_size(count).split()
    return (number if len(number) <= 3 else number.partition(".")[0]) + unit[0]


def format_metric(value: float) -> str:
    """Format a metric in at most eight characters: ``0.3412``, ``12.345``, ``1.2e-05``, ``nan``."""
    if not math.isfinite(value):
        return str(value)
    magnitude = abs(value)
    if magnitude >= 100_000 or 0 < magnitude < 0.001:
        return f"{value:.1e}"
    return f"{value:.{4 if magnitude < 10 else 3 if magnitude < 100 else 1}f}"


def shorten_metric(name: str) -> str:
    """Return the heading of a metric's column; every kind of accuracy is shortened to that word."""
    if name.endswith("accuracy"):
        name = "val_accuracy" if name.startswith("val_") else "accuracy"
    return name.upper()


def format_rate(per_second: float) -> str:
    """Format steps per second with three digits; empty if unknown (-1)."""
    if per_second < 0:
        return ""
    return f"{per_second:.{2 if per_second < 10 else 1 if per_second < 100 else 0}f}"


def format_count(count: int, total: int) -> str:
    """Format a count: ``3/5``; ``3`` if the total is unknown (-1), empty if the count is unknown."""
    if count < 0:
        return ""
    return f"{count}/{total}" if total >= 0 else str(count)
