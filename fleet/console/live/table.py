"""The live console's table as lines of spans: content and layout, without a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.console.columns import (
    GAP,
    Column,
    Layout,
    Line,
    Span,
    arrange_table,
    choose,
    crop,
    justify,
    measure_line,
    measure_table,
    measure_text,
    settle,
)
from fleet.console.formatting import format_clock, format_lifetime, format_size
from fleet.console.live.estimates import draw_curve, estimate_remaining_s
from fleet.console.live.view import Stage, View
from fleet.console.log_lines import clean
from fleet.console.messages import describe_awaited, describe_result
from fleet.console.rows import (
    EPOCH_END,
    Row,
    describe_activity,
    find_awaited_row,
    find_stragglers,
    fold_line,
    fold_rows,
    make_columns,
)
from fleet.events import Outcome, Phase
from provision.quantities import format_money, format_span

_ROWS_MIN = 3  # shown on the smallest terminal
_BAR_MIN, _BAR_MAX = 10, 40  # terminal columns
_CURVE_MIN, _CURVE_MAX = 8, 40
_NAME_MIN = 12  # terminal columns of the name of a fleet
_RULE_MIN = 8  # terminal columns of the parts of a rule that are not text


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond ASCII, or their replacements if the terminal's encoding lacks them."""

    rule: str = "─"
    full: str = "━"
    rest: str = "─"
    mark: str = "…"
    dot: str = "·"
    levels: str = "▁▂▃▄▅▆▇█"


@dataclass
class TableMemory:
    """The layout of the latest table, so that columns keep their places."""

    layout: Layout = field(default_factory=Layout)


ASCII = Glyphs(rule="-", full="#", rest="-", mark="~", dot="-", levels="")


def render_view(
    view: View,
    *,
    width: int,
    height: int,
    now: float,
    bars: Mapping[str, str] = {},
    notice: str = "",
    glyphs: Glyphs = Glyphs(),
    memory: TableMemory | None = None,
) -> list[Line]:
    """Return the lines below the log: a rule, the header, a row per task, and the state of the job.

    Args:
        view: State to show.
        width: Columns of the terminal; no line is longer.
        height: Lines of the terminal; at least a third is left to the log where that is possible.
        now: Seconds since the epoch.
        bars: Progress bars that tasks draw, by name of the task.
        notice: A remark for the last line.
        glyphs: Characters to draw with.
        memory: Layout of the frame before; it gets the layout of this one.
    """
    if not view.priced_at and not view.rows and (view.stage is None or view.is_over):
        return []
    now = view.ended_at or now
    lines = _header(view, width, now, glyphs)
    foot = _foot(view, width, notice, glyphs)
    room = max(_ROWS_MIN, height * 2 // 3 - len(lines) - len(foot) - 1)
    slow = find_stragglers(view.rows)
    shown, folded = fold_rows(view.rows, slow, room)
    if shown:
        lines += arrange_table(
            _columns(view, shown, slow, bars, memory or TableMemory(), width, glyphs), width, glyphs.mark
        )
    if folded:
        lines.append(fold_line(folded, slow, glyphs.mark))
    return [crop(line, width, glyphs.mark) for line in lines + foot]


def draw_bar(done: float, total: float, width: int, glyphs: Glyphs) -> str:
    """Draw a progress bar that is readable without colors."""
    full = int(width * min(1.0, max(0.0, done / total))) if total > 0 else width
    return glyphs.full * full + glyphs.rest * (width - full)


def _header(view: View, width: int, now: float, glyphs: Glyphs) -> list[Line]:
    """Return the rule between log and table with the fleet and its cost, then the job."""
    facts = []
    if view.started_at or view.began_at:
        facts.append(format_clock(now - (view.started_at or view.began_at)))
    left_s = (
        None if view.result or view.retry_at or view.stage is not Stage.JOB else estimate_remaining_s(view.rows, now)
    )
    if left_s is not None:
        facts.append(f"{format_span(left_s)} left")
    if view.price_usd_h > 0:
        facts.append(format_money(view.cost_usd(now)))
    if not view.down and (end := format_lifetime(view.stop_at, view.delete_at, now)):
        facts.append(end)
    edge = Span(glyphs.rule * 2, "dim")
    name_width = min(len(view.fleet), _NAME_MIN)
    while len(facts) > 1 and measure_text(f" {glyphs.dot} ".join(facts)) + name_width + _RULE_MIN > width:
        facts.pop(0)
    right = (Span(" "), Span(f" {glyphs.dot} ".join(facts)), Span(" "), edge)
    left = crop((edge, Span(f" {view.fleet or 'fleet'} ", "bold")), width - measure_line(right), glyphs.mark)
    rule = Span(glyphs.rule * (width - measure_line(left) - measure_line(right)), "dim")
    lines: list[Line] = [(*left, rule, *right)]
    if view.job:
        lines.append(_job_line(view, width, now, glyphs))
    return lines


def _job_line(view: View, width: int, now: float, glyphs: Glyphs) -> Line:
    """Return the job, and the curve of its loss if there is room."""
    line = (Span(f"job {view.job}  {_attempt_words(view, now)}  {clean(view.script)}"),)
    room = width - measure_line(line) - GAP - len("loss ")
    curve = draw_curve(view.loss.points, min(room, _CURVE_MAX), glyphs.levels) if room >= _CURVE_MIN else ""
    return justify(line, (Span("loss ", "dim"), Span(curve)), width, glyphs.mark) if curve else line


def _attempt_words(view: View, now: float) -> str:
    """Return ``attempt 2 of 4``, and between attempts the time until the next one starts."""
    if view.stage is Stage.QUEUE:
        return f"queued after job {view.after}"
    words = f"attempt {view.attempt}" + (f" of {view.attempts}" if view.attempts > 1 else "")
    if not view.retry_at or view.result:
        return words
    return f"{words}, next in {format_span(view.retry_at - now)}" if view.retry_at > now else f"{words}, next soon"


def _foot(view: View, width: int, notice: str, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    if view.result and not (view.is_over and view.result.outcome is not Outcome.SUCCEEDED):
        style = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}.get(view.result.outcome, "bold red")
        words = textwrap.wrap(clean(describe_result(view.result)), width, max_lines=4, placeholder=f" {glyphs.mark}")
        lines += [(Span(line, style),) for line in words]
    elif view.stage in (Stage.UP, Stage.PUSH, Stage.PULL, Stage.DOWN) and view.rows and not view.down:
        lines.append(_stage_line(view, width, glyphs))
    elif awaited := find_awaited_row(view.rows):
        lines.append((Span(clean(describe_awaited(awaited)), "yellow"),))
    elif {describe_activity(row) for row in view.rows if row.running} == {EPOCH_END}:
        lines.append((Span(EPOCH_END, "dim"),))
    if notice:
        lines.append((Span(notice, "dim"),))
    return lines


def _stage_line(view: View, width: int, glyphs: Glyphs) -> Line:
    ready = sum(row.ready for row in view.rows)
    done, total = float(ready), float(len(view.rows))
    text = f"{ready} of {len(view.rows)}"
    transferred = sum(row.whole for row in view.rows)
    if view.stage in (Stage.PUSH, Stage.PULL) and transferred:
        done, total = float(sum(row.part for row in view.rows)), float(transferred)
        text = f"{format_size(done)} of {format_size(total)}"
    word = view.stage.value if view.stage else ""
    drawn = draw_bar(done, total, min(_BAR_MAX, max(_BAR_MIN, width - 40)), glyphs)
    full = drawn.rstrip(glyphs.rest) if glyphs.rest != glyphs.full else drawn
    return (Span(f"{word}  "), Span(full, "green"), Span(drawn[len(full) :], "dim"), Span(f"  {text}"))


def _columns(
    view: View,
    rows: list[Row],
    slow: frozenset[str],
    bars: Mapping[str, str],
    memory: TableMemory,
    width: int,
    glyphs: Glyphs,
) -> list[Column]:
    if view.stage is Stage.JOB:
        memory.layout, columns = settle(memory.layout, make_columns(rows, "TASK", slow), width)
    else:
        memory.layout, columns = Layout(), choose(make_columns(rows, "HOST", slow), width)
    room = width - measure_table(columns) - GAP
    if room < _BAR_MIN:
        return columns
    cells = tuple(_last_cell(row, bars, room, glyphs) for row in rows)
    return columns + choose([Column("", cells, limit=room)], room)


def _last_cell(row: Row, bars: Mapping[str, str], room: int, glyphs: Glyphs) -> Span:
    """Return the last cell of a row: the reason, the upload, or the progress of the epoch."""
    if row.lost or (row.reason and row.phase in (Phase.STOPPING, Phase.EXITED)):
        return Span(clean(row.lost or row.reason), "dim")
    if row.phase is None:
        text = clean(row.detail)
        return Span(f"{draw_bar(row.part, row.whole, _BAR_MIN, glyphs)}  {text}" if row.part < row.whole else text)
    if not row.running:
        return Span("")
    activity = describe_activity(row)
    if activity:
        return Span(activity, "dim")
    if row.progress.step >= 0 and row.progress.steps > 0:
        return Span(draw_bar(row.progress.step, row.progress.steps, min(room, _BAR_MAX), glyphs), "dim")
    return Span(bars.get(row.name, ""), "dim")
