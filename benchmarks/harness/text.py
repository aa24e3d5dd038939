"""Results as lines of text; pure."""

from __future__ import annotations

import statistics

from benchmarks.harness.model import LEAST_RUNS, METRICS, Scene, Verdict, values, verdicts

_SECONDARY = ("wall", "client_cpu", "host_cpu", "other")


def number(value: float) -> str:
    """Return a number with three digits, or all before the point."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 9.995 else 2 if abs(value) >= 0.0995 else 3
    return f"{value:.{digits}f}"


def quantity(value: float, metric: str) -> str:
    """Return a number with its unit."""
    unit = METRICS[metric][1]
    return f"{number(value)} {unit}".rstrip()


def spread(samples: list[float], metric: str) -> str:
    """Return the median and the range of some values."""
    if not samples:
        return "-"
    middle = quantity(statistics.median(samples), metric)
    return middle if len(samples) == 1 else f"{middle} ({number(min(samples))} to {number(max(samples))})"


def outcome(verdict: Verdict) -> str:
    """Return `reached`, `MISSED`, or `not measured`, with the number of runs if it is too small; empty: no limit."""
    if verdict.value is None:
        return "not measured"
    if verdict.reached is None:
        return ""
    few = f" (n = {verdict.runs})" if verdict.runs < LEAST_RUNS else ""
    return ("reached" if verdict.reached else "MISSED") + few


def limit(verdict: Verdict) -> str:
    """Return the limit of a goal; empty if it has none."""
    goal = verdict.goal
    if goal.limit is None:
        return ""
    sign = "at least" if goal.at_least else "at most"
    unit = f" {METRICS[goal.metric][1]}".rstrip() if not goal.peer else ""
    return f"{sign} {goal.limit:g}{unit}"


def value(verdict: Verdict) -> str:
    """Return the measured value of a goal."""
    if verdict.value is None:
        return "-"
    if not verdict.goal.peer:
        return quantity(verdict.value, verdict.goal.metric)
    ratio = f"{number(verdict.value)} \N{MULTIPLICATION SIGN}"
    if verdict.extremes is None:
        return ratio
    low, high = map(number, verdict.extremes)
    return f"{ratio} ({low} to {high})"


def subject(verdict: Verdict) -> str:
    """Return the name of a goal: metric and programs."""
    goal = verdict.goal
    programs = f"{goal.subject} / {goal.peer}" if goal.peer else goal.subject
    pairs = ", median of the pairs" if goal.paired else ""
    return f"{programs}, {METRICS[goal.metric][0]}{pairs}"


def scene_lines(scene: Scene) -> list[str]:
    """Return a scene as lines: its programs, then its goals, then its problems."""
    lines = [f"  {scene.title}"]
    metrics = [scene.metric, *(goal.metric for goal in scene.goals), *_SECONDARY]
    shown = list(dict.fromkeys(metrics))
    for name, samples in scene.series.items():
        texts = [
            f"{METRICS[metric][0]} {spread(values(samples, metric), metric)}"
            for metric in shown
            if values(samples, metric)
        ]
        lines.append(f"    {name}: n={len(samples)}" + "".join(f"; {text}" for text in texts))
    for verdict in verdicts(scene):
        wanted = f"; goal: {limit(verdict)}: {outcome(verdict)}" if verdict.goal.limit is not None else ""
        lines.append(f"    = {subject(verdict)}: {value(verdict)}{wanted}")
    return [*lines, *(f"    ! {name}: {text}" for name, text in scene.problems.items())]
