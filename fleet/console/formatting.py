"""Text of values for people, and colors: that of each task, and whether a stream accepts colors."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import IO, Any

from rich.color import ColorSystem
from rich.style import Style

from provision.quantities import format_span

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


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
    if stop_at and (not delete_at or stop_at < delete_at):
        return f"stops in {format_span(stop_at - now)}" if stop_at > now else "stops now"
    if not delete_at:
        return ""
    return f"deleted in {format_span(delete_at - now)}" if delete_at > now else "deleted now"


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
    """Format bytes in at most five characters: ``512B``, ``1.2G``, ``117M``."""
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
