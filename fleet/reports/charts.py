"""Decide what the charts of a report show: a line for each task and attempt. The template of the page draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fleet.results.runs import read_telemetry, scalars_of

COLORS = 8
"""Number of tasks with a color of their own."""

WIDTH, HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 30
_MOST_METRICS = 12
_MOST_LINES = 64  # of a chart
_MOST_POINTS = 4000  # of a chart
_SMALLEST = 1e-150  # difference of two values
_TIME_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))
_METRICS = "metrics/"
_STEP_TIME = "steps_per_s"
_KINDS = {
    _STEP_TIME: ("Step time", "ms", "speed"),
    "cpu_percent": ("CPU", "% of one core", "resources"),
    "memory_mib": ("Memory", "MiB", "resources"),
    "percent": ("GPU use", "%", "resources"),
    "gpu_memory_mib": ("GPU memory", "MiB", "resources"),
}
"""Name, unit, and group of each value that is not a metric."""

Point = tuple[float, float]
"""Time in seconds since the epoch, and value."""
Samples = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
"""Samples of telemetry by task and attempt."""


class Curve(NamedTuple):
    """A value of a task, or of one of its GPUs, over time: its points, one part for each attempt."""

    task: str
    label: str
    parts: list[list[Point]]


class Measure(NamedTuple):
    """A value that tasks have in common; its group is ``metrics``, ``speed``, or ``resources``."""

    name: str
    unit: str
    group: str
    curves: list[Curve]


class Tick(NamedTuple):
    """A mark of an axis, at a position in the units of the drawing."""

    at: float
    label: str


class Line(NamedTuple):
    """A curve of a chart: the path of the SVG, and the points that no line connects; no color: one of the others."""

    label: str
    color: int | None
    path: str
    dots: list[Point]


class Chart(NamedTuple):
    """A chart of curves over time, those with a color last; `starts` are the positions of later attempts."""

    title: str
    unit: str
    time_unit: str
    latest: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    starts: list[float]
    left_out: int


class Frame(NamedTuple):
    """The times that all charts of a page show, in seconds since the epoch, and when later attempts began."""

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

    def ticks(self) -> list[Point]:
        """Return the position of each mark between 0 and 1, and its number."""
        span = (self.end - self.begin) / self.unit[0]
        return [(value / span, value) for value in nice_ticks(0.0, span, 6) if value <= span]


def measure(results: Path, tasks: Sequence[str]) -> list[Measure]:
    """Return what the tasks of a job measured, from a directory of results; empty if it has no telemetry.

    Args:
        results: The directory.
        tasks: The tasks by rank; others are added at the end.
    """
    samples: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {task: {} for task in tasks}
    for task, attempt, points in read_telemetry(results):
        samples.setdefault(task, {})[attempt] = points
    return measures_of(samples)


def measures_of(samples: Samples) -> list[Measure]:
    """Return the curves of samples: metrics first, loss before others, then speed, then resources."""
    curves: dict[str, list[Curve]] = {}
    for task, attempts in samples.items():
        parts: dict[str, list[list[Point]]] = {}
        for _, points in sorted(attempts.items()):
            for tag, part in _points_by_tag(points).items():
                parts.setdefault(tag, []).append(part)
        for tag, lines in parts.items():
            gpu, _, name = tag.partition("/") if tag.startswith("gpu-") else ("", "", tag)
            kind = f"gpu_{name}" if gpu and name == "memory_mib" else name
            curves.setdefault(kind, []).append(Curve(task, f"{task} {gpu.replace('gpu-', 'GPU ')}".strip(), lines))
    metrics = sorted((kind for kind in curves if kind.startswith(_METRICS)), key=_metric_rank)[:_MOST_METRICS]
    rows = [(kind.removeprefix(_METRICS), "", "metrics", curves[kind]) for kind in metrics]
    return [Measure(*row) for row in [*rows, *((*_KINDS[kind], curves[kind]) for kind in _KINDS if kind in curves)]]


def _points_by_tag(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Return the points of one attempt that a chart can show."""
    points: dict[str, list[Point]] = {}
    for sample in sorted(samples, key=lambda sample: float(sample["at"])):
        for name, seen in scalars_of(sample).items():
            tag = name.removeprefix("fleet/")
            value = seen if tag != _STEP_TIME else 1000 / seen if seen > 0 else math.nan
            if math.isfinite(value):
                points.setdefault(tag, []).append((float(sample["at"]), value))
    return points


def _metric_rank(kind: str) -> tuple[bool, bool, str]:
    name = kind.removeprefix(_METRICS)
    return name != "loss", "loss" not in name, name


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
    stride = -(-len(values) // _MOST_POINTS)
    last = [curve.parts[-1][-1][1] for curve in shown]
    latest = [format_number(value) for value in dict.fromkeys((min(last), max(last)))]

    def x(at: float) -> float:
        return round(_LEFT + frame.share(at) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_TOP + (1 - (value - low) / (high - low)) * (HEIGHT - _TOP - _BOTTOM), 1)

    def line(curve: Curve) -> Line:
        parts = [[(x(at), y(value)) for at, value in part[::-stride][::-1]] for part in curve.parts]
        path = "".join("M" + "L".join(f"{x:g},{y:g}" for x, y in part) for part in parts if len(part) > 1)
        return Line(curve.label, colors.get(curve.task), path, [part[0] for part in parts if len(part) == 1])

    lines = sorted(map(line, shown), key=lambda line: -1 if line.color is None else COLORS - line.color)
    return Chart(
        title=measure.name,
        unit=measure.unit,
        time_unit=frame.unit[1],
        latest=" to ".join(dict.fromkeys(latest)),
        x_ticks=[
            Tick(x(frame.begin + share * (frame.end - frame.begin)), format_number(value))
            for share, value in frame.ticks()
        ],
        y_ticks=[Tick(y(value), format_number(value)) for value in ticks],
        lines=lines,
        starts=[x(at) for at in frame.starts],
        left_out=len(measure.curves) - len(shown),
    )


def _value_ticks(low: float, high: float, *, from_zero: bool) -> list[float]:
    low = min(0.0, low) if from_zero else low
    if high - low <= max(_SMALLEST, 1e-9 * max(abs(high), abs(low))):
        margin = abs(high) / 2 if abs(high) > _SMALLEST else 1.0
        low, high = (low if from_zero else high - margin), high + margin
    return nice_ticks(low, high, 4)


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


def assign_colors(tasks: Sequence[str]) -> dict[str, int]:
    """Return the color of each of the first tasks."""
    return {task: index for index, task in enumerate(tasks[:COLORS])}
