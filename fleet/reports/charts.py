"""Decide what a chart shows: scales, ticks, lines, and their labels. The template of the page draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.reports.measures import Measure, Point

COLORS = 8
"""Number of tasks with a color of their own."""

WIDTH, HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 30
_MOST_LINES = 64
_SMALLEST = 1e-150  # difference of two values
_TIME_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))


@dataclass(frozen=True)
class Tick:
    """A mark of an axis.

    Attributes:
        at: Its position in the units of the drawing.
        label: Its number.
    """

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A curve of a chart.

    Attributes:
        label: Its name.
        color: Index of its color; None: it is one of the others.
        path: The path of the SVG.
        dots: Points that no line connects.
    """

    label: str
    color: int | None
    path: str
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A chart of curves over time.

    Attributes:
        title: Its name.
        unit: Unit of the values; empty: none.
        time_unit: Unit of the time axis.
        latest: The last values, in short.
        x_ticks: Marks of the time axis.
        y_ticks: Marks of the axis of values.
        lines: The curves, those with a color last.
        starts: Positions at which an attempt began, except the first one.
        left_out: Number of curves that are not drawn.
    """

    title: str
    unit: str
    time_unit: str
    latest: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    starts: tuple[float, ...]
    left_out: int


@dataclass(frozen=True)
class Frame:
    """The times that all charts of a page show.

    Attributes:
        begin: Seconds since the epoch.
        end: Seconds since the epoch, later.
        starts: When attempts began, except the first one.
    """

    begin: float
    end: float
    starts: tuple[float, ...] = ()

    @property
    def unit(self) -> tuple[float, str]:
        """Return the unit of the time axis: its seconds and its name."""
        return max((unit for unit in _TIME_UNITS if unit[0] * 3 <= self.end - self.begin), default=_TIME_UNITS[0])

    def share(self, at: float) -> float:
        """Return the position of a time between 0 and 1."""
        return min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return the position of each mark between 0 and 1, and its label."""
        seconds, _ = self.unit
        span = (self.end - self.begin) / seconds
        return [(value / span, format_number(value)) for value in nice_ticks(0.0, span, most) if 0 <= value <= span]


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers that cover an interval: the first one is at most `low`, the last one at least `high`.

    Args:
        low: Start of the interval.
        high: End of the interval, greater.
        most: Wanted number of steps; there may be one more at each end.
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * power for factor in (1.0, 2.0, 2.5, 5.0) if factor * power >= raw * 0.999), 10.0 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def format_number(value: float) -> str:
    """Return a number with at most four digits: ``0.25``, ``1200``, ``1.5e+06``."""
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"


def draw(measure: Measure, frame: Frame, colors: Mapping[str, int]) -> Chart:
    """Return the chart of a measure.

    Args:
        measure: The values.
        frame: The times to show.
        colors: The color of each task.
    """
    shown = measure.curves[:_MOST_LINES]
    values = [value for curve in shown for part in curve.parts for _, value in part]
    ticks = _value_ticks(min(values), max(values), from_zero=measure.group != "metrics")
    low, high = ticks[0], ticks[-1]

    def place(point: Point) -> tuple[float, float]:
        share = (point[1] - low) / (high - low)
        return round(_x(frame.share(point[0])), 1), round(_TOP + (1 - share) * (HEIGHT - _TOP - _BOTTOM), 1)

    lines = [
        _line(curve.label, colors.get(curve.task), [[place(point) for point in part] for part in curve.parts])
        for curve in shown
    ]
    return Chart(
        title=measure.name,
        unit=measure.unit,
        time_unit=frame.unit[1],
        latest=_latest([curve.last for curve in shown]),
        x_ticks=tuple(Tick(round(_x(at), 1), label) for at, label in frame.ticks()),
        y_ticks=tuple(Tick(place((frame.begin, value))[1], format_number(value)) for value in ticks),
        lines=tuple(sorted(lines, key=lambda line: -1 if line.color is None else -line.color + COLORS)),
        starts=tuple(round(_x(frame.share(at)), 1) for at in frame.starts),
        left_out=len(measure.curves) - len(shown),
    )


def _x(share: float) -> float:
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _value_ticks(low: float, high: float, *, from_zero: bool) -> list[float]:
    low = min(0.0, low) if from_zero else low
    if high - low <= max(_SMALLEST, 1e-9 * max(abs(high), abs(low))):
        margin = abs(high) / 2 if abs(high) > _SMALLEST else 1.0
        low, high = (low if from_zero else high - margin), high + margin
    return nice_ticks(low, high, 4)


def _line(label: str, color: int | None, parts: Sequence[Sequence[tuple[float, float]]]) -> Line:
    path = "".join(_path(part) for part in parts if len(part) > 1)
    return Line(label, color, path, tuple(part[0] for part in parts if len(part) == 1))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _latest(values: Sequence[float]) -> str:
    low, high = format_number(min(values)), format_number(max(values))
    return low if low == high else f"{low} to {high}"


def assign_colors(tasks: Sequence[str]) -> dict[str, int]:
    """Return the color of each of the first tasks."""
    return {task: index for index, task in enumerate(tasks[:COLORS])}
