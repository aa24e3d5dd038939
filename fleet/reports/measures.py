"""Curves over time of what the hosts measured during a job; bounded in size, however long the job was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fleet.results.runs import read_telemetry, scalars_of

MOST_METRICS = 12
_PREFIX = "fleet/"
_METRICS = "metrics/"
_MOST_POINTS = 4000  # of a chart
_FEWEST_POINTS = 40  # of a curve

Point = tuple[float, float]
"""Time in seconds since the epoch, and value."""


@dataclass(frozen=True)
class Curve:
    """A value of a task over time.

    Attributes:
        task: The task.
        label: Name of the curve: the task, and the GPU if there are several.
        parts: Its points in the order of time, one part for each attempt.
    """

    task: str
    label: str
    parts: tuple[tuple[Point, ...], ...]

    @property
    def last(self) -> float:
        """Return the last value."""
        return self.parts[-1][-1][1]

    @property
    def peak(self) -> float:
        """Return the largest value."""
        return max(value for part in self.parts for _, value in part)


@dataclass(frozen=True)
class Measure:
    """A value that tasks have in common.

    Attributes:
        name: Its name, for users.
        unit: Its unit; empty: none.
        curves: A curve for each task, by rank.
        group: ``metrics``, ``speed`` or ``resources``.
    """

    name: str
    unit: str
    curves: tuple[Curve, ...]
    group: str


@dataclass(frozen=True)
class _Kind:
    name: str
    unit: str
    group: str
    scale: float = 1.0
    is_inverse: bool = False


_KINDS: Mapping[str, _Kind] = {
    "steps_per_s": _Kind("Step time", "ms", "speed", 1000.0, is_inverse=True),
    "cpu_percent": _Kind("CPU", "% of one core", "resources"),
    "memory_mib": _Kind("Memory", "MiB", "resources"),
    "percent": _Kind("GPU use", "%", "resources"),
    "gpu_memory_mib": _Kind("GPU memory", "MiB", "resources"),
}

Samples = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
"""Samples of telemetry by task and attempt."""


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
    by_kind: dict[str, list[Curve]] = {}
    for task, attempts in samples.items():
        for tag, parts in _parts_by_tag(attempts).items():
            kind, gpu = _split_gpu(tag)
            by_kind.setdefault(kind, []).append(Curve(task, f"{task} {gpu}".strip(), parts))
    metrics = sorted((kind for kind in by_kind if kind.startswith(_METRICS)), key=_metric_rank)[:MOST_METRICS]
    others = [kind for kind in _KINDS if kind in by_kind]
    return [_measure(kind, by_kind[kind]) for kind in [*metrics, *others]]


def _parts_by_tag(attempts: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[tuple[Point, ...], ...]]:
    parts: dict[str, list[tuple[Point, ...]]] = {}
    for _, samples in sorted(attempts.items()):
        by_tag: dict[str, list[Point]] = {}
        for sample in sorted(samples, key=lambda sample: float(sample["at"])):
            for tag, value in scalars_of(sample).items():
                by_tag.setdefault(tag.removeprefix(_PREFIX), []).append((float(sample["at"]), value))
        for tag, points in by_tag.items():
            parts.setdefault(tag, []).append(tuple(points))
    return {tag: tuple(lines) for tag, lines in parts.items()}


def _split_gpu(tag: str) -> tuple[str, str]:
    """Return the kind of a tag, and the GPU that it is about: ``gpu-1/percent`` is ``percent`` of ``GPU 1``."""
    gpu, _, name = tag.partition("/")
    if tag.startswith("gpu-"):
        return ("gpu_memory_mib" if name == "memory_mib" else name), f"GPU {gpu.removeprefix('gpu-')}"
    return tag, ""


def _metric_rank(kind: str) -> tuple[bool, bool, str]:
    name = kind.removeprefix(_METRICS)
    return name != "loss", "loss" not in name, name


def _measure(tag: str, curves: Sequence[Curve]) -> Measure:
    kind = _KINDS.get(tag) or _Kind(tag.removeprefix(_METRICS), "", "metrics")
    most = max(_FEWEST_POINTS, _MOST_POINTS // max(1, sum(len(curve.parts) for curve in curves)))
    kept = []
    for curve in curves:
        parts = [tuple(thin_out(list(_scaled(part, kind)), most)) for part in curve.parts]
        if any(parts):
            kept.append(Curve(curve.task, curve.label, tuple(part for part in parts if part)))
    return Measure(kind.name, kind.unit, tuple(kept), kind.group)


def _scaled(points: Iterable[Point], kind: _Kind) -> Iterable[Point]:
    for at, value in points:
        if kind.is_inverse and value > 0:
            yield at, kind.scale / value
        elif not kind.is_inverse and math.isfinite(value):
            yield at, kind.scale * value


def thin_out(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points with the same outline: the lowest and the highest value of each interval.

    Args:
        points: Points in the order of time.
        most: Maximum number, at least 4.
    """
    if len(points) <= most:
        return list(points)
    edges = [round(index * len(points) / (most // 2)) for index in range(most // 2 + 1)]
    kept: list[Point] = []
    for begin, end in pairwise(edges):
        part = points[begin:end]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept
