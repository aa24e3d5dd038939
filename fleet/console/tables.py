"""Tables of hosts and tasks: their rows, the columns that fit, and lines of a terminal."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fleet.console import formatting
from fleet.console.log_lines import clean
from fleet.console.messages import format_exit, name_task
from fleet.events import Exit, Phase, Progress, TaskAwaited, find_awaited

GAP = 2  # terminal columns between two columns
STOPPED = "stopped"
EPOCH_END = "end of the epoch: validating or saving"
_LAST_MIN = 10  # terminal columns of a last column
_METRIC_LAYOUT = ((3, 8), (7, 8), (9, 0), (11, 0))  # rank and least width; memory comes after the first metric
_EXPECTED = ("loss", "metric")  # there is room for them before the first one is reported
_SLOW_RATE = 0.7  # of the median of the others
WARM_STEPS = 10  # the first steps do not show the speed
_TONE = {
    "waiting": "dim",
    "queued": "dim",
    "running": "green",
    "done": "green",
    "stopping": "yellow",
    "slow": "yellow",
    "no answer": "yellow",
    "unknown": "yellow",
    "lost": "red",
}

T = TypeVar("T")


class Column:
    """A column of a table.

    Args:
        title: Heading of the column.
        rows: What the table shows.
        text: Returns the cell of a row; only a Text has a style.
        rank: If space is short, columns of the highest rank are left out first; rank 0 never is.
        right: True if cells are aligned right.
        limit: Largest width; longer cells are cut.
        least: Smallest width in a table that is drawn again and again, also before the column has content.
    """

    def __init__(
        self,
        title: str,
        rows: Iterable[T],
        text: Callable[[T], str | Text],
        *,
        rank: int = 0,
        right: bool = False,
        limit: int = 40,
        least: int = 0,
    ) -> None:
        self.title, self.rank, self.limit, self.least = title, rank, limit, least
        self.justify: Any = "right" if right else "left"
        self.cells = [value if isinstance(value, Text) else make_line(value) for value in map(text, rows)]
        self.has_content = any(cell.plain for cell in self.cells)

    def width(self, least: int) -> int:
        """Return the width in terminal columns, at least `least`."""
        return min(self.limit, max(least, cell_len(self.title), *(cell.cell_len for cell in self.cells)))

    def lines(self, width: int) -> list[Text]:
        """Return the heading and the cells, each `width` terminal columns wide."""
        lines = [make_line(self.title if self.has_content else "", "dim"), *self.cells]
        for line in lines:
            line.align(self.justify, width)
        return lines


def make_table(
    columns: Sequence[Column],
    room: int,
    before: MutableMapping[str, int] | None = None,
    last: Callable[[int], Sequence[Text]] | None = None,
) -> list[Text]:
    """Return the lines of a table of the columns that have content and fit, in the given order.

    A line is a Text: rich needs six times the CPU time for a Table, which would measure and align all cells again.

    Args:
        columns: All columns.
        room: Terminal columns of the table.
        before: Widths of the columns of the table before, so that they keep their places; changed to those of this
            table. None: the table is drawn once.
        last: Returns the cells of a column without a heading, which takes the given room that is left.
    """
    widths: dict[Column, int] = {}
    left = room
    for column in sorted(columns, key=lambda column: column.rank):
        least = 0 if before is None else max(column.least, before.get(column.title, 0))
        width = column.width(least)
        if (column.has_content or least) and (not column.rank or width <= left):
            widths[column] = width
            left -= width + GAP
    shown = [column for column in columns if column in widths]
    while shown and not shown[-1].has_content:
        left += widths[shown.pop()] + GAP
    if before is not None:
        before.update({column.title: widths[column] for column in shown if column.has_content})
    cells = [column.lines(widths[column]) for column in shown]
    if last and left >= _LAST_MIN:
        cells.append([Text(), *last(left)])
    lines = [Text(" " * GAP, no_wrap=True).join(row) for row in zip(*cells, strict=True)]
    for line in lines:
        line.truncate(room, overflow="ellipsis")
        line.rstrip()
    return lines


def join_ends(left: Text, right: str, width: int) -> Text:
    """Return two texts at the two ends of a line; `left` is cut if both do not fit."""
    left.truncate(max(0, width - GAP - cell_len(right)), overflow="ellipsis", pad=True)
    return left.append(" " * GAP + right)


def make_line(text: str, style: str = "") -> Text:
    """Return a text that takes one line, cut at the width of the terminal."""
    return Text(clean(text), style, no_wrap=True, overflow="ellipsis")


def fit(text: str, width: int) -> str:
    """Return `text`, or the part of it that fits `width` terminal columns, with an ellipsis."""
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def render(lines: Iterable[RenderableType], width: int, *, color: bool = False) -> str:
    """Return what rich draws as text without spaces at the ends of lines."""
    console = make_console(io.StringIO(), color=color)
    console.width = width
    with console.capture() as captured:
        console.print(Group(*lines))
    return "".join(line.rstrip() + "\n" for line in captured.get().split("\n")[:-1])


def make_console(file: Any, *, color: bool) -> Console:
    """Return a console that draws to `file` as to a terminal, and changes nothing in texts."""
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="replace")
    return Console(
        file=file,
        force_terminal=True,
        force_interactive=True,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


# --- rows of hosts and tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A host or a task; -1: unknown.

    Attributes:
        name: ``worker-0``.
        slot: Its slot in the fleet.
        address: Address of that host, with the port of the task's server if it has one.
        step_text: Current step of the host, while it has no task.
        ready: The host's part of the present stage is done.
        detail: Object of `step_text`, or the state of a transfer.
        part: Progress of `detail`, up to `whole`.
        whole: Bytes or packages; 0: unknown.
        phase: None until the task exists.
        exit: How the task ended.
        reason: Why it is in this phase, if reported.
        progress: Its progress; metrics are the latest values of all reports.
        epoch_at: When this computer received the end of the last epoch, seconds since the epoch; 0: unknown.
        epoch_span_s: Time between the latest two of them, with validation and checkpoints; 0: unknown.
        cpu_percent: CPU use in percent of one core.
        memory_bytes: Memory of the task's processes.
        gpu_percent: Mean of the host's GPUs.
        gpu_memory: Bytes in use on all the host's GPUs.
        awaited: The others waited for it, for long enough to be reported.
        lost: Why the host does not answer; empty: it does.
    """

    name: str
    slot: str = ""
    address: str = ""
    step_text: str = ""
    ready: bool = False
    detail: str = ""
    part: int = 0
    whole: int = 0
    phase: Phase | None = None
    exit: Exit | None = None
    reason: str = ""
    progress: Progress = field(default_factory=Progress)
    epoch_at: float = 0.0
    epoch_span_s: float = 0.0
    cpu_percent: float = -1.0
    memory_bytes: int = -1
    gpu_percent: float = -1.0
    gpu_memory: int = -1
    awaited: bool = False
    lost: str = ""

    @property
    def position(self) -> int:
        """Return the steps since the beginning, from the task's output; -1: unknown."""
        at = self.progress
        if at.step >= 0 and at.steps > 0 and at.epoch > 0:
            return (at.epoch - 1) * at.steps + at.step
        return at.step if at.epoch < 0 else -1

    @property
    def running(self) -> bool:
        """True while user code runs."""
        return self.phase is Phase.RUNNING

    @property
    def failed(self) -> bool:
        """True if the task ended in another way than it should."""
        return self.phase is Phase.EXITED and (self.step_text or format_exit(self.exit)) not in ("done", STOPPED)

    @property
    def activity(self) -> str:
        """Return what a running task does before its first step or between two epochs, if it is known."""
        at = self.progress
        if self.running and at.epoch >= 0 and 0 < at.steps <= at.step:
            return EPOCH_END
        return clean(at.activity or "") if self.running and at.step <= 0 else ""

    def describe_state(self, slow: frozenset[str] = frozenset()) -> str:
        """Describe the state in a few words; `slow`: names of the tasks that are clearly behind the others."""
        if self.phase is Phase.EXITED:
            return self.step_text or format_exit(self.exit)
        if self.lost:
            return "no answer"
        if self.phase is None:
            return self.step_text
        return "slow" if self.name in slow else self.phase.value


def find_awaited_row(rows: Sequence[Row]) -> TaskAwaited | None:
    """Return the task that the others wait for in synchronous training; None if it is unknown."""
    if any(row.lost for row in rows):
        return None
    awaited = find_awaited({row.name: row.progress for row in rows if row.running})
    return awaited if awaited and any(row.awaited for row in rows if row.name == awaited.task) else None


def find_stragglers(rows: Sequence[Row]) -> frozenset[str]:
    """Return the names of the running tasks that are clearly slower than the median of the others.

    In synchronous training the slowest task sets the pace of all, so that all are equal in this: there it is the task
    that the others wait for.
    """
    running = [row for row in rows if row.running and not row.lost]
    slow = {row.name for row in running if _is_straggler(row, [other for other in running if other is not row])}
    awaited = find_awaited_row(rows)
    return frozenset(slow | ({awaited.task} if awaited is not None else set()))


def _is_straggler(row: Row, others: Sequence[Row]) -> bool:
    rates = [other.progress.steps_per_s for other in others if other.progress.steps_per_s > 0]
    is_warm = not 0 <= row.position < WARM_STEPS
    return bool(rates) and is_warm and 0 <= row.progress.steps_per_s < _SLOW_RATE * median(rates)


def fold_rows(rows: Sequence[Row], slow: frozenset[str], room: int) -> tuple[list[Row], list[Text]]:
    """Return at most `room` rows, preferring those that need attention, and the line that stands for the others."""
    if len(rows) <= room:
        return list(rows), []

    def is_calm(row: Row) -> bool:
        return not (row.failed or row.lost or row.describe_state(slow) in ("slow", "lost", "unknown"))

    names = {row.name for row in sorted(rows, key=is_calm)[: room - 1]}  # stable: by name within each half
    left_out = Counter(row.describe_state(slow) or "known" for row in rows if row.name not in names)
    (word, count), *others = left_out.most_common()
    text = ", ".join([f"{count} more {word}", *(f"{count} {word}" for word, count in others)])
    return [row for row in rows if row.name in names], [make_line(f"… and {text}", "dim")]


def make_columns(rows: Sequence[Row], title: str, slow: frozenset[str]) -> list[Column]:
    """Return the columns of a table of hosts or tasks.

    Args:
        rows: Hosts or tasks.
        title: Heading of the first column.
        slow: Names of the tasks that are clearly behind the others.
    """

    def numbers(title: str, text: Callable[[Row], str], rank: int, least: int = 0) -> Column:
        return Column(title, rows, text, rank=rank, right=True, limit=12, least=least)

    def metric(name: str, rank: int, least: int) -> Column:
        def text(row: Row) -> str:
            return formatting.format_metric(row.progress.metrics[name]) if name in row.progress.metrics else ""

        return numbers(formatting.shorten_metric(clean(name)), text, rank, least)

    def state(row: Row) -> Text:
        word = row.describe_state(slow)
        tone = "green" if row.phase is None and row.ready else "red" if row.failed else _TONE.get(word, "")
        return make_line(word, tone)

    gpu = any(row.gpu_percent >= 0 for row in rows)
    metrics = zip(_choose_metrics(rows), _METRIC_LAYOUT, strict=False)
    return [
        Column(
            title,
            rows,
            lambda row: make_line(name_task(row.name, row.slot), formatting.choose_color(row.name)),
            limit=24,
        ),
        Column("STATE", rows, state, limit=48, least=7),
        Column("ADDRESS", rows, lambda row: row.address, rank=9, limit=28),
        numbers("GPU", lambda row: _percent(row.gpu_percent), 5),
        numbers("GPU MEM", lambda row: formatting.format_short_size(row.gpu_memory), 8),
        numbers("CPU", lambda row: _percent(row.cpu_percent), 10 if gpu else 6, 4),
        numbers("MEM", lambda row: formatting.format_short_size(row.memory_bytes), 11 if gpu else 8, 4),
        numbers("EPOCH", lambda row: formatting.format_count(row.progress.epoch, row.progress.epochs), 1, 5),
        numbers("STEP", lambda row: formatting.format_count(row.progress.step, row.progress.steps), 2, 9),
        numbers("STEPS/S", lambda row: formatting.format_rate(row.progress.steps_per_s), 4, 7),
        *(metric(name, *layout) for name, layout in metrics),
    ]


def _choose_metrics(rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics to show, the loss first and values of the validation last; at least two."""
    names = dict.fromkeys(name for row in rows for name in row.progress.metrics)
    shown = sorted(names, key=lambda name: (name != "loss", name.startswith("val_")))
    return shown + list(_EXPECTED[len(shown) :])


def _percent(value: float) -> str:
    return f"{value:.0f}%" if value >= 0 else ""
