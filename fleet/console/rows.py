"""A table of hosts or tasks: the model of a row, and its columns; of the live console and of `fleet status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.console.colors import choose_color
from fleet.console.columns import Column, Span
from fleet.console.formatting import format_count, format_metric, format_rate, format_short_size, shorten_metric
from fleet.console.log_lines import clean
from fleet.console.messages import format_exit, name_task
from fleet.events import Exit, Phase, Progress

STOPPED = "stopped"
_METRICS = 4  # shown of each task
_TONE = {
    "waiting": "dim",
    "running": "green",
    "done": "green",
    "stopping": "yellow",
    "slow": "yellow",
    "no answer": "yellow",
    "unknown": "yellow",
    "lost": "red",
}


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
        cpu_percent: CPU use in percent of one core.
        memory_bytes: Memory of the task's processes.
        gpu_percent: Mean of the host's GPUs.
        gpu_memory_mib: Sum of the host's GPUs.
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
    cpu_percent: float = -1.0
    memory_bytes: int = -1
    gpu_percent: float = -1.0
    gpu_memory_mib: int = -1
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


def make_columns(rows: Sequence[Row], title: str, slow: frozenset[str] = frozenset()) -> list[Column]:
    """Return the columns of a table; if space is short, those with the highest rank are left out first.

    Args:
        rows: Hosts or tasks.
        title: Heading of the first column.
        slow: Names of the tasks that are clearly behind the others.
    """

    def numbers(title: str, text: Callable[[Row], str], rank: int) -> Column:
        return Column.of(title, rows, text, rank=rank, right=True, limit=12)

    gpu = any(row.gpu_percent >= 0 for row in rows)
    return [
        Column(title, tuple(Span(name_task(row.name, row.slot), choose_color(row.name)) for row in rows), limit=24),
        Column("STATE", tuple(_state(row, slow) for row in rows), limit=30),
        Column.of("ADDRESS", rows, lambda row: row.endpoint or row.address, rank=9, limit=28),
        numbers("EPOCH", lambda row: format_count(row.progress.epoch, row.progress.epochs), 1),
        numbers("STEP", lambda row: format_count(row.progress.step, row.progress.steps), 2),
        numbers("STEPS/S", lambda row: format_rate(row.progress.steps_per_s), 4),
        *(
            numbers(shorten_metric(clean(name)), _metric(name), 5 + 2 * number if number else 3)
            for number, name in enumerate(_metrics(rows))  # memory comes after the first metric
        ),
        numbers("GPU", lambda row: _percent(row.gpu_percent), 5),
        numbers("GPU MEM", lambda row: _memory(row.gpu_memory_mib * 2**20), 8),
        numbers("CPU", lambda row: _percent(row.cpu_percent), 10 if gpu else 6),
        numbers("MEM", lambda row: _memory(row.memory_bytes), 11 if gpu else 8),
    ]


def _state(row: Row, slow: frozenset[str]) -> Span:
    word = describe_state(row, slow)
    if row.phase is None and row.ready:
        return Span(clean(word), "green")
    failed = row.phase is Phase.EXITED and word not in ("done", STOPPED)
    return Span(clean(word), "red" if failed else _TONE.get(word, ""))


def _metrics(rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics to show, the loss first and values of the validation last."""
    names = dict.fromkeys(name for row in rows for name in row.progress.metrics)
    return sorted(names, key=lambda name: (name != "loss", name.startswith("val_")))[:_METRICS]


def _metric(name: str) -> Callable[[Row], str]:
    return lambda row: format_metric(row.progress.metrics[name]) if name in row.progress.metrics else ""


def _percent(value: float) -> str:
    return f"{value:.0f}%" if value >= 0 else ""


def _memory(count: float) -> str:
    return format_short_size(count) if count >= 0 else ""
