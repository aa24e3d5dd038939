"""Write docs/performance.md and its plots from results. Text outside of the generated part is kept."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import median

from benchmarks.groups import NAMES
from benchmarks.harness.model import METRICS, GroupResult, Scene, values, verdicts
from benchmarks.harness.text import limit, number, outcome, spread, subject, value

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_WIDTH, _ROW, _LEFT, _RIGHT = 760, 22, 250, 130
_STYLE = """
text { font: 13px sans-serif; fill: #222 } .title { font-weight: bold }
.bar { fill: #9aa5b1 } .fleet { fill: #2f6fb2 } .range { stroke: #222; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .bar { fill: #6b7580 } .fleet { fill: #5b9bd9 } .range { stroke: #ddd }
}
"""


def write_document(results: Mapping[str, GroupResult], docs: Path) -> list[Path]:
    """Write the generated part of the document, and a plot for each group.

    Args:
        results: Results by group.
        docs: The directory of the documents.

    Returns:
        The files that were written.
    """
    page, plots = docs / "performance.md", docs / "performance"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    plots.mkdir(exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    ordered = [results[name] for name in NAMES if name in results]
    written = [page]
    for result in ordered:
        if drawn := [scene for scene in result.scenes if has_values(scene)]:
            written.append(plots / f"{result.name}.svg")
            written[-1].write_text(plot(drawn))
    sections = [overview(ordered), *(section(result) for result in ordered)]
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(sections) + f"\n{END}{after}")
    return written


def has_values(scene: Scene) -> bool:
    """Return whether there is a value to plot."""
    return any(values(samples, scene.metric) for samples in scene.series.values())


def title(name: str) -> str:
    """Return the title of a group."""
    text: str = importlib.import_module(f"benchmarks.groups.{name}").TITLE
    return text


def overview(results: list[GroupResult]) -> str:
    """Return the table of all goals."""
    lines = ["## Goals", "", "| work | compared | measured | goal | |", "|---|---|---|---|---|"]
    for result in results:
        for scene in result.scenes:
            lines += [
                f"| {scene.title} | {subject(verdict)} | {value(verdict)} | {limit(verdict)} | {outcome(verdict)} |"
                for verdict in verdicts(scene)
                if verdict.goal.limit is not None
            ]
            if not scene.series:
                lines.append(f"| {scene.title} | | - | | not measured: {scene.problems.get('all', '')} |")
        if result.problem:
            lines.append(f"| {title(result.name)} | | - | | failed: {result.problem} |")
    return "\n".join([*lines, ""])


def section(result: GroupResult) -> str:
    """Return the section of a group."""
    lines = [f"## {title(result.name)}", ""]
    if any(has_values(scene) for scene in result.scenes):
        lines += [f"![{title(result.name)}](performance/{result.name}.svg)", ""]
    for scene in result.scenes:
        lines += _table(scene)
    if result.problem:
        lines += [f"The group failed: {result.problem}", ""]
    method = f"; CPU time of hosts: {result.accounting}" if result.accounting else ""
    return "\n".join(
        [
            *lines,
            f"`./scripts/bench {result.name}`, {result.date} UTC, commit {result.commit}, {result.seconds:.0f} s, "
            f"{result.machine}{method}.",
            "",
        ]
    )


def _table(scene: Scene) -> list[str]:
    goals = [goal.metric for goal in scene.goals]
    used = {metric for samples in scene.series.values() for sample in samples for metric in sample}
    metrics = [
        metric for metric in dict.fromkeys([scene.metric, *goals, "wall", "client_cpu", "host_cpu"]) if metric in used
    ]
    lines = [f"**{scene.title}**", ""]
    if metrics:
        lines += [
            "| | runs | " + " | ".join(METRICS[metric][0] for metric in metrics) + " |",
            "|---" * (2 + len(metrics)) + "|",
        ]
    for name, samples in scene.series.items():
        if samples:
            cells = [spread(values(samples, metric), metric) for metric in metrics]
            lines.append(f"| {name} | {len(samples)} | " + " | ".join(cells) + " |")
    lines.append("")
    for verdict in verdicts(scene):
        goal = f"; goal: {limit(verdict)}, {outcome(verdict)}" if verdict.goal.limit is not None else ""
        lines.append(f"- {subject(verdict)}: {value(verdict)}{goal}")
    lines += [f"- {'Not measured' if name == 'all' else name}: {text}" for name, text in scene.problems.items()]
    return [*lines, ""]


def plot(scenes: list[Scene]) -> str:
    """Return an SVG image with a bar for the median of each program, and a line for the range."""
    shapes: list[str] = []
    y = 4
    for scene in scenes:
        name, unit = METRICS[scene.metric]
        y += _ROW
        shapes.append(f'<text class="title" x="4" y="{y - 6}">{escape(_plain(scene.title))}: {name}</text>')
        measured = {case: values(samples, scene.metric) for case, samples in scene.series.items()}
        largest = max(max(each) for each in measured.values() if each) or 1.0
        for case, each in measured.items():
            if each:
                y += _ROW
                shapes += _bar(case, each, largest, unit, y)
        y += 8
    style = f"<style>{_STYLE}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}">'
    return "\n".join([head, style, *shapes, "</svg>", ""])


def _plain(text: str) -> str:
    return text.replace("`", "")


def _bar(case: str, measured: list[float], largest: float, unit: str, y: int) -> list[str]:
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    middle, low, high = median(measured), min(measured), max(measured)
    kind = "fleet" if case.startswith("fleet") else "bar"
    label = f"{number(middle)} {unit}".rstrip()
    return [
        f'<text x="{_LEFT - 8}" y="{y - 6}" text-anchor="end">{escape(_short(case))}</text>',
        f'<rect class="{kind}" x="{_LEFT}" y="{y - 17}" width="{max(1.0, middle * scale):.1f}" height="14"/>',
        f'<path class="range" d="M{_LEFT + low * scale:.1f} {y - 10}H{_LEFT + high * scale:.1f}"/>',
        f'<text x="{_LEFT + high * scale + 8:.1f}" y="{y - 6}">{escape(label)}</text>',
    ]


def _short(case: str) -> str:
    return case if len(case) <= 36 else case[:35] + "…"
