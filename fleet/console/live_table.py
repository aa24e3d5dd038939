"""The live console's table as lines of spans: content and layout, without a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.console import formatting
from fleet.console.colors import task_color
from fleet.console.columns import GAP, Column, Line, Span, choose, crop, line_len, table, table_width
from fleet.console.log_lines import clean
from fleet.console.messages import called, exit_words, result_message
from fleet.console.view import STOPPED, Row, Stage, View, stragglers
from provision.quantities import counted
from train.agent.protocol.records import Outcome, Phase

_ROWS_MIN = 3  # shown on the smallest terminal
_BAR_MIN, _BAR_MAX = 10, 40  # terminal columns

_TONE = {
    "waiting": "dim",
    "running": "green",
    "done": "green",
    "stopping": "yellow",
    "slow": "yellow",
    "no answer": "yellow",
}


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond ASCII, or their replacements if the terminal's encoding lacks them."""

    rule: str = "─"
    full: str = "━"
    rest: str = "─"
    mark: str = "…"
    dot: str = "·"


ASCII = Glyphs(rule="-", full="#", rest="-", mark="~", dot="-")


def frame(
    view: View,
    *,
    width: int,
    height: int,
    now: float,
    bars: Mapping[str, str] = {},
    notice: str = "",
    glyphs: Glyphs = Glyphs(),
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
    """
    if not view.fleet and not view.rows:
        return []
    now = view.ended_at or now
    lines = _header(view, width, now, glyphs)
    foot = _foot(view, width, notice, glyphs)
    room = max(_ROWS_MIN, height * 2 // 3 - len(lines) - len(foot) - 1)
    slow = stragglers(view.rows)
    shown, folded = _folded(view.rows, slow, room)
    if shown:
        lines += table(_columns(view, shown, slow, bars, width, glyphs), width, glyphs.mark)
    if folded:
        lines.append(_fold_line(folded, slow, glyphs))
    return [crop(line, width, glyphs.mark) for line in lines + foot]


def bar(done: float, total: float, width: int, glyphs: Glyphs) -> str:
    """Draw a progress bar that is readable without colors."""
    full = int(width * min(1.0, max(0.0, done / total))) if total > 0 else width
    return glyphs.full * full + glyphs.rest * (width - full)


def state_word(row: Row, slow: frozenset[str]) -> str:
    """Describe the state of a row in a few words."""
    if row.phase is None:
        return "no answer" if row.lost else row.step_text
    if row.phase is Phase.EXITED:
        return row.step_text or exit_words(row.exit)
    if row.lost:
        return "no answer"
    return "slow" if row.name in slow else row.phase.value


def _header(view: View, width: int, now: float, glyphs: Glyphs) -> list[Line]:
    """Return the rule between log and table with the fleet and its cost, then the job."""
    facts = []
    if view.started_at or view.began_at:
        facts.append(formatting.clock(now - (view.started_at or view.began_at)))
    if view.price_usd_h > 0:
        facts.append(formatting.money(view.cost_usd(now)))
    if view.delete_at > 0 and not view.down:
        facts.append(f"deleted in {formatting.span(view.delete_at - now)}" if view.delete_at > now else "deleted now")
    edge = Span(glyphs.rule * 2, "dim")
    right = (Span(" "), Span(f" {glyphs.dot} ".join(facts)), Span(" "), edge)
    left = crop((edge, Span(f" {view.fleet or 'fleet'} ", "bold")), width - line_len(right), glyphs.mark)
    rule = Span(glyphs.rule * (width - line_len(left) - line_len(right)), "dim")
    lines: list[Line] = [(*left, rule, *right)]
    if view.job:
        lines.append((Span(f"job {view.job}  {_attempt_words(view, now)}  {clean(view.script)}"),))
    return lines


def _attempt_words(view: View, now: float) -> str:
    """Return ``attempt 2 of 4``, and between attempts the time until the next one starts."""
    words = f"attempt {view.attempt}" + (f" of {view.attempts}" if view.attempts > 1 else "")
    if not view.retry_at or view.result:
        return words
    return (
        f"{words}, next in {formatting.span(view.retry_at - now)}" if view.retry_at > now else f"{words}, next soon"
    )


def _foot(view: View, width: int, notice: str, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    if view.result:
        style = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}.get(view.result.outcome, "bold red")
        words = textwrap.wrap(clean(result_message(view.result)), width, max_lines=4, placeholder=f" {glyphs.mark}")
        lines += [(Span(line, style),) for line in words]
    elif view.stage in (Stage.UP, Stage.READY, Stage.PUSH, Stage.PULL, Stage.DOWN) and view.rows and not view.down:
        lines.append(_stage_line(view, width, glyphs))
    if notice:
        lines.append((Span(notice, "dim"),))
    return lines


def _stage_line(view: View, width: int, glyphs: Glyphs) -> Line:
    ready = sum(row.ready for row in view.rows)
    done, total = float(ready), float(len(view.rows))
    text = f"{ready} of {len(view.rows)}"
    pushed = sum(max(0, row.total) for row in view.rows)
    if view.stage in (Stage.PUSH, Stage.PULL) and pushed:
        done, total = float(sum(max(0, row.sent) for row in view.rows)), float(pushed)
        text = f"{formatting.size(done)} of {formatting.size(total)}"
    word = view.stage.value if view.stage else ""
    drawn = bar(done, total, min(_BAR_MAX, max(_BAR_MIN, width - 40)), glyphs)
    full = drawn.rstrip(glyphs.rest) if glyphs.rest != glyphs.full else drawn
    return (Span(f"{word}  "), Span(full, "green"), Span(drawn[len(full) :], "dim"), Span(f"  {text}"))


def _folded(rows: tuple[Row, ...], slow: frozenset[str], room: int) -> tuple[list[Row], list[Row]]:
    """Return the rows to show, preferring those that need attention, and the rows without room."""
    if len(rows) <= room:
        return list(rows), []
    ranked = sorted(rows, key=lambda row: not _notable(row, slow))  # stable: by name within each half
    names = {row.name for row in ranked[: room - 1]}
    return [row for row in rows if row.name in names], [row for row in rows if row.name not in names]


def _notable(row: Row, slow: frozenset[str]) -> bool:
    failed = row.phase is Phase.EXITED and row.step_text != STOPPED and (row.exit is None or row.exit.code != 0)
    return bool(failed or row.lost or row.name in slow)


def _fold_line(rows: list[Row], slow: frozenset[str], glyphs: Glyphs) -> Line:
    (word, count), *others = Counter(state_word(row, slow) or "known" for row in rows).most_common()
    text = ", ".join([f"{count} more {word}", *(f"{count} {word}" for word, count in others)])
    return (Span(f"{glyphs.mark} and {text}", "dim"),)


def _columns(
    view: View, rows: list[Row], slow: frozenset[str], bars: Mapping[str, str], width: int, glyphs: Glyphs
) -> list[Column]:
    columns = choose([*_fixed_columns(view, rows, slow), *_metric_columns(rows), *_usage_columns(rows)], width)
    room = width - table_width(columns) - GAP
    if room < _BAR_MIN:
        return columns
    cells = tuple(_last_cell(row, bars, room, glyphs) for row in rows)
    return columns + choose([Column("", cells, limit=room)], room)


def _fixed_columns(view: View, rows: list[Row], slow: frozenset[str]) -> list[Column]:
    words = [state_word(row, slow) for row in rows]
    title = "TASK" if view.stage is Stage.JOB else "HOST"
    epochs = [formatting.of(row.epoch, row.epochs) for row in rows]
    steps = [formatting.of(row.step, row.steps) for row in rows]
    rates = [formatting.rate(row.steps_per_s) if row.steps_per_s >= 0 else "" for row in rows]
    return [
        Column(title, tuple(Span(called(row.name, row.slot), task_color(row.name)) for row in rows), limit=24),
        Column("STATE", tuple(map(_state_span, rows, words)), limit=30),
        Column("ADDRESS", _plain(row.endpoint or row.address for row in rows), rank=9, limit=28),
        Column("EPOCH", _plain(epochs), rank=1, right=True),
        Column("STEP", _plain(steps), rank=2, right=True),
        Column("STEPS/S", _plain(rates), rank=4, right=True),
    ]


def _state_span(row: Row, word: str) -> Span:
    failed = row.phase is Phase.EXITED and word not in ("done", STOPPED)
    if row.phase is None and row.ready:
        return Span(clean(word), "green")
    return Span(clean(word), "red" if failed else _TONE.get(word, ""))


def _metric_columns(rows: list[Row]) -> list[Column]:
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    ranked = sorted(names, key=lambda name: (name != "loss", name.startswith("val_")))
    return [
        Column(
            formatting.metric_title(clean(name)),
            _plain(formatting.metric(row.metrics[name]) if name in row.metrics else "" for row in rows),
            rank=3 if number == 0 else 5 + 2 * number,  # memory comes after the first metric
            right=True,
            limit=12,
        )
        for number, name in enumerate(ranked[:4])
    ]


def _usage_columns(rows: list[Row]) -> list[Column]:
    def percent(value: float) -> str:
        return f"{value:.0f}%" if value >= 0 else ""

    def memory(value: float) -> str:
        return formatting.size_short(value) if value >= 0 else ""

    gpu = any(row.gpu_percent >= 0 for row in rows)
    gpu_memory = [memory(row.gpu_memory_mib * 2**20 if row.gpu_memory_mib >= 0 else -1) for row in rows]
    return [
        Column("GPU", _plain(percent(row.gpu_percent) for row in rows), rank=5, right=True),
        Column("GPU MEM", _plain(gpu_memory), rank=8, right=True),
        Column("CPU", _plain(percent(row.cpu_percent) for row in rows), rank=10 if gpu else 6, right=True),
        Column("MEM", _plain(memory(row.memory_bytes) for row in rows), rank=11 if gpu else 8, right=True),
    ]


def _plain(texts: Iterable[str]) -> tuple[Span, ...]:
    return tuple(Span(text) for text in texts)


def _last_cell(row: Row, bars: Mapping[str, str], room: int, glyphs: Glyphs) -> Span:
    """Return the last cell of a row: the reason, the upload, or the progress of the epoch."""
    if row.lost or (row.reason and row.phase in (Phase.STOPPING, Phase.EXITED)):
        return Span(clean(row.lost or row.reason), "dim")
    if row.phase is None:
        return Span(_push_text(row, glyphs) if row.total > 0 else _detail_text(row, glyphs))
    if not row.running:
        return Span("")
    if row.step >= 0 and row.steps > 0:
        return Span(bar(row.step, row.steps, min(room, _BAR_MAX), glyphs), "dim")
    return Span(bars.get(row.name, ""), "dim")


def _detail_text(row: Row, glyphs: Glyphs) -> str:
    text = clean(row.detail)
    return f"{bar(row.part, row.whole, _BAR_MIN, glyphs)}  {text}" if row.whole > 0 else text


def _push_text(row: Row, glyphs: Glyphs) -> str:
    text = f"{formatting.size(row.sent)} of {formatting.size(row.total)}, {counted(row.files, 'file')}"
    return text if row.sent >= row.total else f"{bar(row.sent, row.total, _BAR_MIN, glyphs)}  {text}"
