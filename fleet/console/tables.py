"""Tables of rich: the columns that fit, the rows of hosts and tasks, and how all this becomes text."""

from __future__ import annotations

import codecs
import io
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fleet.console.formatting import (
    choose_color,
    format_count,
    format_metric,
    format_rate,
    format_short_size,
    shorten_metric,
)
from fleet.console.log_lines import clean
from fleet.console.messages import format_exit, name_task
from fleet.events import Exit, Phase, Progress, TaskAwaited, find_awaited

_LAST_MIN = 10  # terminal columns of a last column
GAP = 2  # columns of space between two columns
STOPPED = "stopped"
EPOCH_END = "end of the epoch: validating or saving"
_METRIC_LAYOUT = ((3, 8), (7, 8), (9, 0), (11, 0))  # rank and least width; memory comes after the first metric
_EXPECTED = ("loss", "metric")  # there is room for them before the first one is reported
_SLOW_RATE = 0.7  # of the median of the others
_WARM_STEPS = 10  # the first steps do not show the speed
_LAG_S = 10.0  # seconds' worth of steps: more than delayed reports can explain
_LAG_FRACTION = 0.05  # of the others' steps
_ASCII = {"─": "-", "━": "#", "╸": "#", "╺": "-", "…": "~", "·": "-"}
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


# --- columns ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Heading of the column.
        cells: One for each row.
        rank: If space is short, columns of the highest rank are left out first; rank 0 never is.
        right: True if cells are aligned right.
        limit: Largest width; longer cells are cut.
        least: Smallest width in a table that is drawn again and again, also before the column has content.
    """

    title: str
    cells: tuple[RenderableType, ...]
    rank: int = 0
    right: bool = False
    limit: int = 40
    least: int = 0

    @classmethod
    def of(cls, title: str, rows: Iterable[T], text: Callable[[T], str], **layout: Any) -> Column:
        """Return the column with the plain text of each row; `layout`: further attributes."""
        return cls(title, tuple(Text(clean(text(row))) for row in rows), **layout)

    @property
    def has_content(self) -> bool:
        """Return True if a cell is not empty."""
        return any(not isinstance(cell, Text) or cell.plain for cell in self.cells)

    def width(self, least: int = 0) -> int:
        """Return the width in terminal columns, at least `least`."""
        cells = [cell.cell_len if isinstance(cell, Text) else self.limit for cell in self.cells]
        return min(self.limit, max(least, cell_len(self.title), *cells))


def make_table(
    columns: Iterable[Column],
    room: int,
    before: MutableMapping[str, int] | None = None,
    last: Sequence[RenderableType] = (),
) -> Table:
    """Return a table of the columns that have content and fit, in the given order.

    Args:
        columns: All columns.
        room: Terminal columns of the table.
        before: Widths of the columns of the table before, so that they keep their places; changed to those of this
            table. None: the table is drawn once.
        last: Cells of a column without a heading, which takes the room that is left; empty: there is none.
    """
    given = list(columns)
    widths: dict[int, int] = {}  # of the chosen columns, by index
    left = room + GAP
    for at, column in sorted(enumerate(given), key=lambda pair: pair[1].rank):
        least = 0 if before is None else max(column.least, before.get(column.title, 0))
        width = column.width(least)
        if (column.has_content or least) and (not column.rank or width + GAP <= left):
            widths[at] = width
            left -= width + GAP
    while widths and not given[max(widths)].has_content:
        left += widths.pop(max(widths)) + GAP
    table = Table(box=None, padding=0, header_style="dim")
    cells: list[Iterable[RenderableType]] = []
    for at in sorted(widths):
        column = given[at]
        if cells:
            table.add_column(width=GAP)
            cells.append([""] * len(column.cells))
        cells.append(column.cells)
        table.add_column(
            Text(column.title if column.has_content else ""),
            width=widths[at],
            justify="right" if column.right else "left",
            no_wrap=True,
        )
        if before is not None and column.has_content:
            before[column.title] = widths[at]
    if last and left - GAP >= _LAST_MIN:
        table.add_column(width=GAP)
        table.add_column(width=left - GAP, no_wrap=True)
        cells += [[""] * len(last), last]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def measure_table(table: Table) -> int:
    """Return the terminal columns of a table of `make_table`."""
    return sum(column.width or 0 for column in table.columns)


def join_ends(left: Text, right: Text) -> Table:
    """Return `left` and `right` at the two ends of a line; `left` is cut if both do not fit."""
    table = Table.grid(expand=True)
    table.add_column(no_wrap=True, ratio=1)
    table.add_column(width=GAP)
    table.add_column(no_wrap=True, justify="right")
    table.add_row(left, "", right)
    return table


def render(renderable: RenderableType, width: int, *, color: bool = False) -> str:
    """Return what rich draws as lines of text without spaces at their ends."""
    console = make_console(io.StringIO(), color=color)
    console.size = console.size._replace(width=width)
    with console.capture() as captured:
        console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in captured.get().split("\n")[:-1])


def make_console(file: Any, *, color: bool) -> Console:
    """Return a console that draws to `file` as to a terminal, and changes nothing in texts."""
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


def open_console(out: TextIO, *, color: bool) -> Console:
    """Return a console that draws to a terminal; other characters replace those that its encoding lacks."""
    if isinstance(out, io.TextIOWrapper):
        codecs.register_error("fleet.console", _replace)
        out.reconfigure(errors="fleet.console")
    return make_console(out, color=color)


@dataclass
class Frame:
    """The last lines of the screen; they may change between two refreshes."""

    lines: list[list[Segment]] = field(default_factory=list)

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        """Draw the lines."""
        for line in self.lines:
            yield from (*line, Segment.line())


def draw_lines(console: Console, content: RenderableType) -> list[list[Segment]]:
    """Return what is drawn, without spaces at the ends of lines: a terminal that becomes narrower would wrap them."""
    lines = console.render_lines(content, pad=False)
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
    return lines


def open_live(console: Console, frame: Frame) -> Live:
    """Return a display of a frame; whatever is printed on the console draws it again, below what is printed."""
    return Live(frame, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(char, "?") for char in error.object[error.start : error.end]), error.end


def fit(text: str, width: int) -> str:
    """Return `text`, or the part of it that fits `width` terminal columns, with an ellipsis."""
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def make_line(text: str | Text, style: str = "") -> Text:
    """Return a text that takes one line, cut at the width of the terminal."""
    line = text.copy() if isinstance(text, Text) else Text(clean(text), style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


# --- rows of hosts and tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A host or a task; -1: unknown.

    Attributes:
        name: ``worker-0``.
        slot: Its slot in the fleet.
        address: Address of that host.
        step_text: Current step of the host, while it has no task.
        ready: The host's part of the present stage is done.
        endpoint: Address and port of the task's server.
        detail: Object of `step_text`, or the state of a transfer.
        part: Progress of `detail`, up to `whole`.
        whole: Bytes or packages; 0: unknown.
        attempt: Attempt to which the following fields apply.
        phase: None until the task exists.
        exit: How the task ended.
        reason: Why it is in this phase, if reported.
        progress: Its progress; metrics are the latest values of all reports.
        epoch_at: When this computer received the end of the last epoch, seconds since the epoch; 0: unknown.
        epoch_span_s: Time between the latest two of them, with validation and checkpoints; 0: unknown.
        cpu_percent: CPU use in percent of one core.
        memory_bytes: Memory of the task's processes.
        gpu_percent: Mean of the host's GPUs.
        gpu_memory_mib: Sum of the host's GPUs.
        awaited: The others waited for it, for long enough to be reported.
        lost: Why the host does not answer; empty: it does.
    """

    name: str
    slot: str = ""
    address: str = ""
    step_text: str = ""
    ready: bool = False
    endpoint: str = ""
    detail: str = ""
    part: int = 0
    whole: int = 0
    attempt: int = 0
    phase: Phase | None = None
    exit: Exit | None = None
    reason: str = ""
    progress: Progress = field(default_factory=Progress)
    epoch_at: float = 0.0
    epoch_span_s: float = 0.0
    cpu_percent: float = -1.0
    memory_bytes: int = -1
    gpu_percent: float = -1.0
    gpu_memory_mib: int = -1
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


def describe_state(row: Row, slow: frozenset[str]) -> str:
    """Describe the state of a row in a few words."""
    if row.phase is None:
        return "no answer" if row.lost else row.step_text
    if row.phase is Phase.EXITED:
        return row.step_text or format_exit(row.exit)
    if row.lost:
        return "no answer"
    return "slow" if row.name in slow else row.phase.value


def describe_activity(row: Row) -> str:
    """Return what a running task does before its first step or between two epochs, if it is known."""
    if not row.running:
        return ""
    if row.progress.epoch >= 0 and 0 < row.progress.steps <= row.progress.step:
        return EPOCH_END
    return clean(row.progress.activity or "") if row.progress.step <= 0 else ""


def find_awaited_row(rows: Sequence[Row]) -> TaskAwaited | None:
    """Return the task that the others wait for in synchronous training; None if it is unknown."""
    if any(row.lost for row in rows):
        return None
    awaited = find_awaited({row.name: row.progress for row in rows if row.running})
    return awaited if awaited and any(row.awaited for row in rows if row.name == awaited.task) else None


def find_stragglers(rows: Sequence[Row]) -> frozenset[str]:
    """Return the names of the running tasks that are clearly behind the median of the others, in speed or steps.

    In synchronous training the slowest task sets the pace of all, so that all are equal in this: there it is the task
    that the others wait for.
    """
    running = [row for row in rows if row.running and not row.lost]
    awaited = find_awaited_row(rows)
    return frozenset(
        row.name
        for row in running
        if (awaited is not None and row.name == awaited.task)
        or _is_straggler(row, [other for other in running if other is not row])
    )


def _is_straggler(row: Row, others: list[Row]) -> bool:
    rates = [other.progress.steps_per_s for other in others if other.progress.steps_per_s > 0]
    if not rates:
        return False
    speed = median(rates)
    if 0 <= row.progress.steps_per_s < _SLOW_RATE * speed and not 0 <= row.position < _WARM_STEPS:
        return True
    positions = [other.position for other in others if other.position >= 0]
    if row.position < 0 or not positions:
        return False
    middle = median(positions)
    return middle - row.position > max(_LAG_S * speed, _LAG_FRACTION * middle)


def fold_rows(rows: Sequence[Row], slow: frozenset[str], room: int) -> tuple[list[Row], list[Row]]:
    """Return the rows to show, preferring those that need attention, and the rows without room."""
    if len(rows) <= room:
        return list(rows), []
    ranked = sorted(rows, key=lambda row: not _notable(row, slow))  # stable: by name within each half
    names = {row.name for row in ranked[: room - 1]}
    return [row for row in rows if row.name in names], [row for row in rows if row.name not in names]


def _notable(row: Row, slow: frozenset[str]) -> bool:
    failed = row.phase is Phase.EXITED and row.step_text != STOPPED and (row.exit is None or row.exit.code != 0)
    return bool(failed or row.lost or describe_state(row, slow) in ("slow", "lost", "unknown"))


def fold_line(rows: Sequence[Row], slow: frozenset[str]) -> Text:
    """Return the line that stands for rows without room."""
    (word, count), *others = Counter(describe_state(row, slow) or "known" for row in rows).most_common()
    text = ", ".join([f"{count} more {word}", *(f"{count} {word}" for word, count in others)])
    return make_line(f"… and {text}", "dim")


def make_columns(rows: Sequence[Row], title: str, slow: frozenset[str] = frozenset()) -> list[Column]:
    """Return the columns of a table; if space is short, those with the highest rank are left out first.

    Args:
        rows: Hosts or tasks.
        title: Heading of the first column.
        slow: Names of the tasks that are clearly behind the others.
    """

    def numbers(title: str, text: Callable[[Row], str], rank: int, least: int = 0) -> Column:
        return Column.of(title, rows, text, rank=rank, right=True, limit=12, least=least)

    gpu = any(row.gpu_percent >= 0 for row in rows)
    metrics = enumerate(_metrics(rows))
    return [
        Column(title, tuple(Text(name_task(row.name, row.slot), choose_color(row.name)) for row in rows), limit=24),
        Column("STATE", tuple(_state(row, slow) for row in rows), limit=48, least=7),
        Column.of("ADDRESS", rows, lambda row: row.endpoint or row.address, rank=9, limit=28),
        numbers("GPU", lambda row: _percent(row.gpu_percent), 5),
        numbers("GPU MEM", lambda row: _memory(row.gpu_memory_mib * 2**20), 8),
        numbers("CPU", lambda row: _percent(row.cpu_percent), 10 if gpu else 6, 4),
        numbers("MEM", lambda row: _memory(row.memory_bytes), 11 if gpu else 8, 4),
        numbers("EPOCH", lambda row: format_count(row.progress.epoch, row.progress.epochs), 1, 5),
        numbers("STEP", lambda row: format_count(row.progress.step, row.progress.steps), 2, 9),
        numbers("STEPS/S", lambda row: format_rate(row.progress.steps_per_s), 4, 7),
        *(numbers(shorten_metric(clean(name)), _metric(name), *_METRIC_LAYOUT[at]) for at, name in metrics),
    ]


def _state(row: Row, slow: frozenset[str]) -> Text:
    word = describe_state(row, slow)
    failed = row.phase is Phase.EXITED and word not in ("done", STOPPED)
    tone = "green" if row.phase is None and row.ready else "red" if failed else _TONE.get(word, "")
    return Text(clean(word), tone)


def _metrics(rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics to show, the loss first and values of the validation last; at least two."""
    names = dict.fromkeys(name for row in rows for name in row.progress.metrics)
    shown = sorted(names, key=lambda name: (name != "loss", name.startswith("val_")))[: len(_METRIC_LAYOUT)]
    return shown + list(_EXPECTED[len(shown) :])


def _metric(name: str) -> Callable[[Row], str]:
    return lambda row: format_metric(row.progress.metrics[name]) if name in row.progress.metrics else ""


def _percent(value: float) -> str:
    return f"{value:.0f}%" if value >= 0 else ""


def _memory(count: float) -> str:
    return format_short_size(count) if count >= 0 else ""
