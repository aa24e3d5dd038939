"""Render the page of a report: one HTML file without scripts that needs no network.

Texts come from hosts and from users: each one is escaped, shortened, and cleaned of control characters. The page
itself forbids the browser to load or run anything.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.reports.charts import COLORS, HEIGHT, WIDTH, Measure, assign_colors, draw, format_number
from fleet.reports.record import JobRecord, packages_of
from fleet.reports.timeline import frame_of, lay_out
from train.agent.protocol.records import LATEST_S

LONGEST_TEXT = 2000  # characters of one text
_MOST_TASKS = 256
_MOST_LINES = 40
_MOST_ITEMS = 200
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
UNKNOWN = "\u2013"
_GROUPS = (("metrics", "Metrics"), ("speed", "Speed"), ("resources", "Resources"))
_STATES = {"succeeded": "good", "failed": "bad", "lost": "bad", "running": "busy"}


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
    filters = (format_span, format_time, format_number, format_offset, keep_whole)
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template("page.html").render(_context(record, measures))


def _context(record: JobRecord, measures: Sequence[Measure]) -> dict[str, Any]:
    tasks = [task.task for task in record.tasks]
    times = [at for item in measures for curve in item.curves for part in curve.parts for at, _ in part]
    frame = frame_of(record, times)
    colors = assign_colors(tasks)
    drawn = [(item.group, draw(item, frame, colors)) for item in measures if item.curves]
    sections = [(title, [chart for group, chart in drawn if group == name]) for name, title in _GROUPS]
    return {
        "job": record,
        "title": f"{record.name} ({record.job})" if record.name else record.job,
        "badge": _STATES.get(record.state, "plain"),
        "tasks": record.tasks[:_MOST_TASKS],
        "colors": colors,
        "colored": COLORS,
        "sections": [section for section in sections if section[1]],
        "frame": frame,
        "timeline": lay_out(record, frame),
        "peaks": _peaks(measures),
        "packages": packages_of(record.tasks[:_MOST_TASKS]),
        "clusters": _clusters(record),
        "width": WIDTH,
        "height": HEIGHT,
        "most_lines": _MOST_LINES,
        "most_items": _MOST_ITEMS,
    }


def _peaks(measures: Sequence[Measure]) -> Mapping[str, float]:
    """Return the peak of the memory of each task in MiB."""
    curves = [curve for item in measures if item.name == "Memory" for curve in item.curves]
    return {curve.task: max(value for part in curve.parts for _, value in part) for curve in curves}


def _clusters(record: JobRecord) -> list[tuple[str, str]]:
    """Return TF_CONFIG of each task, indented."""
    configs: list[tuple[str, str]] = []
    for task in record.tasks[:_MOST_TASKS]:
        if task.tf_config and len(configs) * len(task.tf_config) < 1 << 20:
            try:
                text = json.dumps(json.loads(task.tf_config), indent=1)
            except (ValueError, RecursionError):
                text = task.tf_config
            configs.append((task.task, text))
    return configs


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


def format_span(seconds: float | None) -> str:
    """Return a duration: ``42.5 s``, ``12 min 5 s``, ``3 h 20 min``; a dash if it is unknown."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    total = int(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def format_offset(seconds: float) -> str:
    """Return a time since the start: ``0:42``, ``1:02:03``."""
    total = int(seconds)
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_time(at: float | None) -> str:
    """Return a time in UTC: ``2026-11-22 21:30:05 UTC``; a dash if it is unknown."""
    if not at or not 0 < at < LATEST_S:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
