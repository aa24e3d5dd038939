"""The live console's frame below the log: what rich draws, without a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, MutableMapping

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from fleet.console.formatting import format_clock, format_lifetime, format_size
from fleet.console.log_lines import clean
from fleet.console.messages import describe_awaited, describe_result
from fleet.console.tables import (
    EPOCH_END,
    GAP,
    Row,
    describe_activity,
    find_awaited_row,
    find_stragglers,
    fit,
    fold_line,
    fold_rows,
    join_ends,
    make_columns,
    make_line,
    make_table,
)
from fleet.console.view import Stage, View, draw_curve, estimate_remaining_s
from fleet.events import Outcome, Phase
from provision.quantities import format_money, format_span

_ROWS_MIN = 3  # shown on the smallest terminal
_BAR_MIN, _BAR_MAX = 10, 40  # terminal columns
_CURVE_MIN, _CURVE_MAX = 8, 40
_NAME_MIN = 12  # terminal columns of the name of a fleet
_RULE_MIN = 8  # terminal columns of the parts of a rule that are not text


def make_frame(
    view: View,
    *,
    width: int,
    height: int,
    now: float,
    bars: Mapping[str, str] = {},
    notice: str = "",
    widths: MutableMapping[str, int] | None = None,
) -> Group:
    """Return the lines below the log: a rule, the job, a row per task, and the state of the command.

    Args:
        view: State to show.
        width: Columns of the terminal.
        height: Lines of the terminal; at least a third is left to the log where that is possible.
        now: Seconds since the epoch.
        bars: Progress bars that tasks are drawing, by name of the task.
        notice: Text of the last line.
        widths: Widths of the columns in the frame before; changed to those of this frame.
    """
    if not view.rows and (view.stage is None or view.is_over):
        return Group()
    now = view.ended_at or now
    head, foot = _head(view, width, now), _foot(view, width, notice)
    room = max(_ROWS_MIN, height * 2 // 3 - len(head) - len(foot) - 1)
    slow = find_stragglers(view.rows)
    shown, folded = fold_rows(view.rows, slow, room)
    is_job = view.stage is Stage.JOB
    body: list[RenderableType] = []
    if shown:
        columns = make_columns(shown, "TASK" if is_job else "HOST", slow)
        last = [_last_cell(row, bars) for row in shown]
        before = {} if widths is None else widths
        body.append(make_table(columns, width, before if is_job else None, last))
    if folded:
        body.append(fold_line(folded, slow))
    return Group(*head, *body, *foot)


def _head(view: View, width: int, now: float) -> list[RenderableType]:
    """Return the rule between log and table with the fleet and its cost, then the job."""
    facts = [format_clock(now - (view.started_at or view.began_at or now))]
    left_s = estimate_remaining_s(view.rows, now) if view.stage is Stage.JOB else None
    if left_s is not None and not (view.result or view.retry_at):
        facts.append(f"{format_span(left_s)} left")
    if view.price_usd_h > 0:
        facts.append(format_money(view.cost_usd(now)))
    if not view.down and (end := format_lifetime(view.stop_at, view.delete_at, now)):
        facts.append(end)
    room = width - _RULE_MIN - min(len(view.fleet), _NAME_MIN)
    while len(facts) > 1 and cell_len(" · ".join(facts)) > room:
        facts.pop(0)
    right = f" {' · '.join(facts)} "
    name = fit(view.fleet or "fleet", width - cell_len(right) - 6)
    rule = "─" * (width - cell_len(right) - cell_len(name) - 6)
    lines: list[RenderableType] = [
        Text.assemble(("── ", "dim"), (name, "bold"), (f" {rule}", "dim"), right, ("──", "dim"), no_wrap=True)
    ]
    if view.job:
        job = make_line(f"job {view.job}  {_attempt_words(view, now)}  {view.script}")
        room = width - job.cell_len - GAP - len("loss ")
        curve = draw_curve(view.loss.points, min(room, _CURVE_MAX)) if room >= _CURVE_MIN else ""
        lines.append(join_ends(job, Text.assemble(("loss ", "dim"), curve)) if curve else job)
    return lines


def _attempt_words(view: View, now: float) -> str:
    """Return ``attempt 2 of 4``, and between attempts the time until the next one starts."""
    if view.stage is Stage.QUEUE:
        return f"queued after job {view.after}"
    words = f"attempt {view.attempt}" + (f" of {view.attempts}" if view.attempts > 1 else "")
    if not view.retry_at or view.result:
        return words
    return f"{words}, next in {format_span(view.retry_at - now)}" if view.retry_at > now else f"{words}, next soon"


def _foot(view: View, width: int, notice: str) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if view.result and not (view.is_over and view.result.outcome is not Outcome.SUCCEEDED):
        style = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}.get(view.result.outcome, "bold red")
        words = textwrap.wrap(clean(describe_result(view.result)), width, max_lines=4, placeholder=" …")
        lines += [make_line(line, style) for line in words]
    elif view.stage in (Stage.UP, Stage.PUSH, Stage.PULL, Stage.DOWN) and view.rows and not view.down:
        lines.append(_stage_line(view, width))
    elif awaited := find_awaited_row(view.rows):
        lines.append(make_line(describe_awaited(awaited), "yellow"))
    elif {describe_activity(row) for row in view.rows if row.running} == {EPOCH_END}:
        lines.append(make_line(EPOCH_END, "dim"))
    return [*lines, make_line(notice, "dim")] if notice else lines


def _stage_line(view: View, width: int) -> RenderableType:
    ready = sum(row.ready for row in view.rows)
    done, total = float(ready), float(len(view.rows))
    text = f"{ready} of {len(view.rows)}"
    transferred = sum(row.whole for row in view.rows)
    if view.stage in (Stage.PUSH, Stage.PULL) and transferred:
        done, total = float(sum(row.part for row in view.rows)), float(transferred)
        text = f"{format_size(done)} of {format_size(total)}"
    word = view.stage.value if view.stage else ""
    return _draw_progress(word, done, total, min(_BAR_MAX, max(_BAR_MIN, width - 40)), text)


def _draw_progress(before: str, done: float, total: float, width: int, after: str) -> RenderableType:
    """Return a bar with a text before and after it."""
    texts = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("before", "after")]
    bar = BarColumn(width, style="bright_black", complete_style="green", finished_style="green")
    progress = Progress(*(texts[:1] if before else []), bar, texts[1], auto_refresh=False)
    progress.add_task("", total=total, completed=int(min(done, total)), before=before, after=after)
    return progress.get_renderable()


def _last_cell(row: Row, bars: Mapping[str, str]) -> RenderableType:
    """Return the last cell of a row: the reason, the upload, or the progress of the epoch."""
    if row.lost or (row.reason and row.phase in (Phase.STOPPING, Phase.EXITED)):
        return make_line(row.lost or row.reason, "dim")
    if row.phase is None:
        text = make_line(row.detail, "dim")
        return _draw_progress("", row.part, row.whole, _BAR_MIN, text.plain) if row.part < row.whole else text
    if not row.running:
        return Text("")
    if activity := describe_activity(row):
        return make_line(activity, "dim")
    if row.progress.step >= 0 and row.progress.steps > 0:
        return ProgressBar(
            row.progress.steps,
            row.progress.step,
            _BAR_MAX,
            style="bright_black",
            complete_style="green",
            finished_style="green",
        )
    return make_line(bars.get(row.name, ""), "dim")
