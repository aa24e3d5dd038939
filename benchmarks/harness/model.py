"""Measurements, goals, and verdicts; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Sample = Mapping[str, float]
"""Values of one run by metric."""

LEAST_RUNS = 3
"""Number of runs that a verdict needs; with fewer, it is shown with their number."""

METRICS = {
    "wall": ("wall time", "s"),
    "client_cpu": ("client CPU", "s"),
    "host_cpu": ("host CPU", "s"),
    "memory": ("client memory", "MB"),
    "other": ("CPU used by other programs", "%"),
    "started": ("until user code runs on the last host", "s"),
    "skew": ("start skew", "ms"),
    "rate": ("rate", "klines/s"),
    "throughput": ("throughput", "MB/s"),
    "p50": ("median latency", "ms"),
    "p99": ("latency, 99th percentile", "ms"),
    "first_step": ("until the first step", "s"),
    "stopped": ("until all tasks are stopped", "s"),
    "next_step": ("until the first step of the next attempt", "s"),
    "steps": ("steps per second", "1/s"),
    "step_cpu": ("CPU time per step, all processes", "ms"),
    "first_steps": ("first 100 steps and first checkpoint", "s"),
    "load": ("CPU", "% of a core"),
    "resident": ("memory", "MB"),
    "requests": ("requests without polling", ""),
}


@dataclass(frozen=True)
class Goal:
    """A limit for the ratio of two medians, for the median of ratios, or for a median.

    Attributes:
        metric: The metric, a key of METRICS.
        subject: Name of the series that the goal is for.
        peer: Name of the series that it is divided by; empty: the limit is for the median itself.
        limit: The limit; None: the ratio is only reported.
        at_least: Whether the limit is a lower one.
        paired: Whether the ratio is that of two runs of the same round; the limit is for the median of these.
    """

    metric: str
    subject: str
    peer: str = ""
    limit: float | None = None
    at_least: bool = False
    paired: bool = False


@dataclass(frozen=True)
class Scene:
    """Runs of several programs that do the same work.

    Attributes:
        title: The work.
        metric: The metric of the plot.
        series: Runs by program, in the order of measurement.
        goals: Ratios to report.
        problems: Why a program was not measured, or not in every round; by program.
    """

    title: str
    metric: str
    series: Mapping[str, Sequence[Sample]]
    goals: Sequence[Goal] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupResult:
    """Results of a group.

    Attributes:
        name: Name of the group.
        date: Date and time in UTC.
        machine: Description of the computer.
        commit: Commit of the project.
        size: quick, default, or full.
        accounting: How the CPU time of the hosts was measured.
        seconds: Duration.
        scenes: What was measured.
        problem: Why the group ended early; empty: it did not.
    """

    name: str
    date: str
    machine: str
    commit: str
    size: str
    accounting: str
    seconds: float
    scenes: Sequence[Scene]
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """A goal with its measured value.

    Attributes:
        goal: The goal.
        value: Ratio of the medians, or the median; None if it was not measured.
        reached: Whether the goal is reached; None without a limit or a value.
        runs: Number of runs of the program with the fewest.
        extremes: Smallest and largest ratio of two runs of the same round; None: the goal is not for these.
    """

    goal: Goal
    value: float | None
    reached: bool | None
    runs: int = 0
    extremes: tuple[float, float] | None = None


def values(samples: Sequence[Sample], metric: str) -> list[float]:
    """Return the values of a metric."""
    return [sample[metric] for sample in samples if metric in sample]


def judge(scene: Scene, goal: Goal) -> Verdict:
    """Return the verdict for a goal of a scene."""
    subject = values(scene.series.get(goal.subject, ()), goal.metric)
    peer = values(scene.series.get(goal.peer, ()), goal.metric) if goal.peer else [1.0] * len(subject)
    if not subject or not peer or not statistics.median(peer):
        return Verdict(goal, None, None)
    value, runs, extremes = statistics.median(subject) / statistics.median(peer), min(len(subject), len(peer)), None
    if goal.paired:
        ratios = [ours / theirs for ours, theirs in zip(subject, peer, strict=True)]
        value, extremes = statistics.median(ratios), (min(ratios), max(ratios))
    reached = None
    if goal.limit is not None:
        reached = value >= goal.limit if goal.at_least else value <= goal.limit
    return Verdict(goal, value, reached, runs, extremes)


def verdicts(scene: Scene) -> list[Verdict]:
    """Return the verdicts for all goals of a scene."""
    return [judge(scene, goal) for goal in scene.goals]


def to_json(results: Mapping[str, GroupResult]) -> dict[str, Any]:
    """Return results as JSON values, rounded to 4 digits after the point."""
    return {name: _rounded(asdict(result)) for name, result in sorted(results.items())}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def from_json(document: Mapping[str, Any]) -> dict[str, GroupResult]:
    """Return the results of a JSON document."""
    return {
        name: GroupResult(
            **{
                **fields,
                "scenes": tuple(
                    Scene(**{**scene, "goals": tuple(Goal(**goal) for goal in scene["goals"])})
                    for scene in fields["scenes"]
                ),
            }
        )
        for name, fields in document.items()
    }
