"""The live console's frame below the log: what rich draws, without a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, MutableMapping

from rich.cells import cell_len
from rich.text import Text

from fleet.console import tables
from fleet.console.formatting import format_clock, format_lifetime, format_size
from fleet.console.log_lines import clean
from fleet.console.messages import describe_awaited, describe_result
from fleet.console.view import Stage, View, estimate_remaining_s
from fleet.events import Outcome, Phase
from provision.quantities import format_money, format_span

_ROWS_MIN = 3  # shown on the smallest terminal
_BAR_MIN, _BAR_MAX = 10, 40  # terminal columns
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
) -> list[Text]:
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
    rows = view.rows
    if not rows and (view.stage is None or view.is_over):
        return []
    now = view.ended_at or now
    lines = [_make_rule(view, rows, width, now)]
    if view.job:
        lines.append(tables.make_line(f"job {view.job}  {_attempt_words(view, now)}  {view.script}"))
    foot = _foot(view, rows, width)
    if notice:
        foot.append(tables.make_line(notice, "dim"))
    slow = tables.find_stragglers(rows)
    shown, folded = tables.fold_rows(rows, slow, max(_ROWS_MIN, height * 2 // 3 - len(lines) - len(foot) - 1))
    if shown:
        is_job = view.stage is Stage.JOB
        columns = tables.make_columns(shown, "TASK" if is_job else "HOST", slow)
        before = ({} if widths is None else widths) if is_job else None
        lines += tables.make_table(
            columns, width, before, lambda room: [_last_cell(row, bars.get(row.name, ""), room) for row in shown]
        )
    return [*lines, *folded, *foot]


def _make_rule(view: View, rows: list[tables.Row], width: int, now: float) -> Text:
    """Return the rule between log and table, with the fleet, its cost, and how long the job runs and takes."""
    facts = [format_clock(now - (view.started_at or view.began_at or now))]
    left_s = estimate_remaining_s(rows, now) if view.stage is Stage.JOB else None
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
    name = tables.fit(view.fleet or "fleet", width - cell_len(right) - 6)
    rule = "─" * (width - cell_len(right) - cell_len(name) - 6)
    return Text.assemble(("── ", "dim"), (name, "bold"), (f" {rule}", "dim"), right, ("──", "dim"), no_wrap=True)


def _attempt_words(view: View, now: float) -> str:
    """Return ``attempt 2 of 4``, and between attempts the time until the next one starts."""
    if view.stage is Stage.QUEUE:
        return f"queued after job {view.after}"
    words = f"attempt {view.attempt}" + (f" of {view.attempts}" if view.attempts > 1 else "")
    if not view.retry_at or view.result:
        return words
    return f"{words}, next in {format_span(view.retry_at - now)}" if view.retry_at > now else f"{words}, next soon"


def _foot(view: View, rows: list[tables.Row], width: int) -> list[Text]:
    if view.result and not (view.is_over and view.result.outcome is not Outcome.SUCCEEDED):
        style = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}.get(view.result.outcome, "bold red")
        words = textwrap.wrap(clean(describe_result(view.result)), width, max_lines=4, placeholder=" …")
        return [tables.make_line(line, style) for line in words]
    if view.stage in (Stage.UP, Stage.PUSH, Stage.PULL, Stage.DOWN) and rows and not view.down:
        return [_stage_line(view.stage, rows, width)]
    if awaited := tables.find_awaited_row(rows):
        return [tables.make_line(describe_awaited(awaited), "yellow")]
    is_between = {row.activity for row in rows if row.running} == {tables.EPOCH_END}
    return [tables.make_line(tables.EPOCH_END, "dim")] if is_between else []


def _stage_line(stage: Stage, rows: list[tables.Row], width: int) -> Text:
    done, total = sum(row.ready for row in rows), len(rows)
    text = f"{done} of {total}"
    if stage in (Stage.PUSH, Stage.PULL) and (transferred := sum(row.whole for row in rows)):
        done, total = sum(row.part for row in rows), transferred
        text = f"{format_size(done)} of {format_size(total)}"
    bar = _make_bar(done, total, min(_BAR_MAX, max(_BAR_MIN, width - 40)))
    return Text(" ").join([tables.make_line(stage.value), bar, tables.make_line(text)])


def _make_bar(done: int, total: int, width: int) -> Text:
    """Return a bar that is readable without colors, too."""
    filled = width * min(done, total) // total
    return Text.assemble(("━" * filled, "green"), ("─" * (width - filled), "bright_black"))


def _last_cell(row: tables.Row, bar: str, room: int) -> Text:
    """Return the last cell of a row: the reason, the upload, or the progress of the epoch."""
    if row.lost or (row.reason and row.phase in (Phase.STOPPING, Phase.EXITED)):
        return tables.make_line(row.lost or row.reason, "dim")
    if row.phase is None:
        text = tables.make_line(row.detail, "dim")
        return Text(" ").join([_make_bar(row.part, row.whole, _BAR_MIN), text]) if row.part < row.whole else text
    if row.running and not row.activity and row.progress.step >= 0 and row.progress.steps > 0:
        return _make_bar(row.progress.step, row.progress.steps, min(room, _BAR_MAX))
    return tables.make_line(row.activity or bar * row.running, "dim")
