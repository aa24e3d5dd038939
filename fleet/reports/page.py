"""Render the page of a report: one HTML file without scripts that needs no network.

Texts come from hosts and from users: each one is escaped, shortened, and cleaned of control characters. The page
itself forbids the browser to load or run anything.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fleet.reports.record import JobRecord, packages_of
from fleet.results.runs import read_telemetry, scalars_of
from provision.quantities import format_span
from train.agent.protocol.records import LATEST_S

CAPSULE_SUFFIX = ".capsule.zip"
"""End of the name of a capsule."""

LONGEST_TEXT = 2000  # characters of one text
UNKNOWN = "\u2013"
_MARK = b'<!doctype html>\n<html lang="en">\n'
_GENERATOR = b'<meta name="generator" content="fleet '
_HEAD = 1 << 10  # bytes of a page in which the generator is named
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_MOST_TASKS = 256
_MOST_METRICS = 12
_MOST_LINES = 64  # of a chart
_MOST_POINTS = 4000  # of a chart
_MOST_STARTS = 60  # of attempts; the last ones
_MOST_FAULTS = 100  # the last ones
_COLORS = 8  # tasks with a color of their own
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 352, 8, 170  # of the lines of a chart
_SMALLEST = 1e-150  # difference of two values
_TIME_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))
_METRICS = "metrics/"
_STEP_TIME = "steps_per_s"
_KINDS = {
    _STEP_TIME: ("Step time", "ms", "Speed"),
    "cpu_percent": ("CPU", "% of one core", "Resources"),
    "memory_mib": ("Memory", "MiB", "Resources"),
    "percent": ("GPU use", "%", "Resources"),
    "gpu_memory_mib": ("GPU memory", "MiB", "Resources"),
}
"""Name, unit, and heading of each value that is not a metric."""

Points = Sequence[tuple[float, float]]
"""Times in seconds since the epoch, and values."""


def is_report(path: Path) -> bool:
    """Return whether a file is a page or a capsule: it belongs to an earlier job, not to the code of the next one."""
    try:
        return path.name.endswith(CAPSULE_SUFFIX) or (path.suffix == ".html" and path.is_file() and is_page(path))
    except OSError:
        return False


def is_page(path: Path) -> bool:
    """Return whether a file is a page of `fleet report`.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return head.startswith(_MARK) and _GENERATOR in head


# --- what the tasks measured ----------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A value of a task, or of one of its GPUs, over time: its points, one part for each attempt."""

    task: str
    label: str
    parts: list[Points]


class Measure(NamedTuple):
    """A value that tasks have in common, below a heading of the page."""

    name: str
    unit: str
    heading: str
    curves: list[Curve]


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


def measures_of(samples: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]) -> list[Measure]:
    """Return the curves of samples: metrics first, loss before others, then speed, then resources.

    Args:
        samples: Samples of telemetry by task and attempt.
    """
    kinds: dict[str, dict[str, Curve]] = {}
    for task, attempts in samples.items():
        for _, sampled in sorted(attempts.items()):
            for tag, points in _points_by_tag(sampled).items():
                gpu, _, name = tag.partition("/") if tag.startswith("gpu-") else ("", "", tag)
                kind = f"gpu_{name}" if gpu and name == "memory_mib" else name
                curve = Curve(task, f"{task} {gpu.replace('gpu-', 'GPU ')}".strip(), [])
                kinds.setdefault(kind, {}).setdefault(curve.label, curve).parts.append(points)
    metrics = sorted((kind for kind in kinds if kind.startswith(_METRICS)), key=_metric_rank)[:_MOST_METRICS]
    shown = {kind: (kind.removeprefix(_METRICS), "", "Metrics") for kind in metrics} | _KINDS
    return [Measure(*words, list(kinds[kind].values())) for kind, words in shown.items() if kind in kinds]


def _points_by_tag(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of one attempt that a chart can show."""
    points: dict[str, list[tuple[float, float]]] = {}
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


# --- charts: the template draws them --------------------------------------------------------------------------------


class Axis(NamedTuple):
    """Values from `low` to `high` on a line from the position `start` to `end`, with marks at `ticks`."""

    low: float
    high: float
    start: float
    end: float
    ticks: list[float]

    def place(self, value: float) -> float:
        """Return the position of a value; of the nearest one on the line if it is not on it."""
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.start + share * (self.end - self.start), 1)


class Chart(NamedTuple):
    """A measure over time, curves with a color last."""

    measure: Measure
    values: Axis
    curves: list[Curve]
    latest: str
    left_out: int


def draw(measure: Measure, colors: Mapping[str, int]) -> Chart:
    """Return the chart of a measure; `colors`: the color of each task."""
    shown = measure.curves[:_MOST_LINES]
    values = [value for curve in shown for part in curve.parts for _, value in part]
    ticks = _value_ticks(min(values), max(values), from_zero=measure.heading != "Metrics")
    stride = -(-len(values) // _MOST_POINTS)
    thin = [curve._replace(parts=[part[::-stride][::-1] for part in curve.parts]) for curve in shown]
    last = [curve.parts[-1][-1][1] for curve in shown]
    latest = dict.fromkeys(format_number(value) for value in (min(last), max(last)))
    return Chart(
        measure,
        Axis(ticks[0], ticks[-1], _BOTTOM, _TOP, ticks),
        sorted(thin, key=lambda curve: -colors.get(curve.task, _COLORS)),
        " to ".join(latest),
        len(measure.curves) - len(shown),
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


# --- the page -------------------------------------------------------------------------------------------------------


def render(record: JobRecord, measures: Sequence[Measure]) -> str:
    """Return the page of a job.

    Args:
        record: The job.
        measures: What its tasks measured.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=clean,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (format_duration, format_time, format_number, keep_whole, trace)
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template("page.html").render(_context(record, measures))


def _context(record: JobRecord, measures: Sequence[Measure]) -> dict[str, Any]:
    colors = {task.task: index for index, task in enumerate(record.tasks[:_COLORS])}
    charts: dict[str, list[Chart]] = {}
    for item in measures:
        charts.setdefault(item.heading, []).append(draw(item, colors))
    curves = [curve for item in measures for curve in item.curves]
    begin, end = _span([at for curve in curves for part in curve.parts for at, _ in part], record)
    unit_s, unit = max((unit for unit in _TIME_UNITS if unit[0] * 3 <= end - begin), default=_TIME_UNITS[0])
    ticks = [tick for tick in nice_ticks(0.0, (end - begin) / unit_s, 6) if tick * unit_s <= end - begin]
    memory = [curve for item in measures if item.name == "Memory" for curve in item.curves]
    return {
        "job": record,
        "tasks": record.tasks[:_MOST_TASKS],
        "colors": colors,
        "charts": charts,
        "times": Axis(begin, end, _LEFT, _RIGHT, ticks),
        "begin": begin,
        "unit_s": unit_s,
        "unit": unit,
        "starts": [part[0][0] for curve in curves[:1] for part in curve.parts[1:]][-_MOST_STARTS:],
        "faults": record.faults[-_MOST_FAULTS:],
        "peaks": {curve.task: max(value for part in curve.parts for _, value in part) for curve in memory},
        "packages": packages_of(record.tasks[:_MOST_TASKS]),
        "tf_config": next((_indent(task.tf_config) for task in record.tasks if task.tf_config), ""),
    }


def _span(measured: Sequence[float], record: JobRecord) -> tuple[float, float]:
    """Return the begin and the end of the times that all charts show, in seconds since the epoch.

    Measured times count if those of the job are unknown or wrong.
    """
    begin = record.started_at or min(measured, default=0.0)
    if measured and not begin - 86400 <= min(measured) <= begin + 30 * 86400:
        begin = min(measured)
    return begin, max([record.ended_at or begin, begin + 1.0, *measured])


def _indent(tf_config: str) -> str:
    try:
        return json.dumps(json.loads(tf_config), indent=1)
    except (ValueError, RecursionError):
        return tf_config


class Whole(str):
    """A text of bounded length without control characters, which the page shows as a whole."""


def clean(value: Any) -> Any:
    """Return a value as the page shows it: texts without control characters, and of bounded length."""
    if type(value) is not str:  # numbers, markup, and texts that are clean
        return value
    return _UNSEEN.sub("\ufffd", value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 1]}…")


def keep_whole(text: str) -> Whole:
    """Return a text whose length was bounded where it was made."""
    return Whole(_UNSEEN.sub("\ufffd", text))


def trace(points: Points, x: Axis, y: Axis) -> Whole:
    """Return points as the SVG attribute of a line."""
    return Whole(" ".join(f"{x.place(at):g},{y.place(value):g}" for at, value in points))


def format_number(value: float) -> str:
    """Return a number with at most four digits: ``0.25``, ``1200``, ``1.5e+06``."""
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"


def format_duration(seconds: float | None) -> str:
    """Return a duration: ``42.5 s``, ``12 min``, ``3 h 20 min``; a dash if it is unknown."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.1f} s" if seconds < 60 else format_span(seconds)


def format_time(at: float | None) -> str:
    """Return a time in UTC: ``2026-11-22 21:30:05 UTC``; a dash if it is unknown."""
    if not at or not 0 < at < LATEST_S:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
