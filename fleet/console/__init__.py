"""Sinks of events: a live table on a terminal, plain lines in a pipe, JSON lines for programs; and errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TextIO

from fleet.console.formatting import accepts_color, is_smart

if TYPE_CHECKING:
    from fleet.events import Sink

Output = Literal["auto", "lines", "json"]


def make_sink(
    output: Output,
    *,
    stdout: TextIO,
    stderr: TextIO,
    prefix: bool = True,
    raw: bool = False,
    hint: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Sink:
    """Return the sink that fits the streams.

    Args:
        output: ``auto`` is live if `stdout` is a terminal that can move its cursor, else lines.
        stdout: Takes the log; its ``buffer`` is written to directly, unless the sink is live.
        stderr: Takes messages, if the log is written to `stdout` as lines.
        prefix: Whether lines of the log start with their task.
        raw: Whether the log is shown byte for byte: with equal lines of all tasks, and redrawn text.
        hint: How to leave the live console, for its last line.
        environ: Environment: TERM and NO_COLOR count.
    """
    if output == "json":
        from fleet.console.jsonl import JsonSink

        return JsonSink(stdout.buffer)
    from fleet.console.lines import LinesSink, LogStyle

    style = LogStyle(prefix, accepts_color(stdout, environ), stdout.isatty(), raw)
    if output == "auto" and is_smart(stdout, environ):
        from fleet.console.live import LiveSink

        return LiveSink(stdout, style, hint=hint)
    return LinesSink(stdout.buffer, stderr, style)
