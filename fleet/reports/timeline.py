"""The timeline of a job: what each slot did in each attempt, as bars, and its faults, as marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fleet.reports.charts import Frame
from fleet.reports.record import Change, Fault, JobRecord

_MOST_ROWS = 64
_MOST_BARS = 60  # of a row; the last ones
_MOST_FAULTS = 100  # the last ones


class Bar(NamedTuple):
    """A phase of a task, in percent of the width.

    Its kind is ``waiting``, ``running``, ``stopping``, ``failed`` (running, and then it failed), or ``idle``.
    """

    left: float
    width: float
    kind: str
    label: str


class Row(NamedTuple):
    """The bars of a slot; its label is its last task, with the slot if the names differ."""

    label: str
    bars: list[Bar]
    summary: str


class Mark(NamedTuple):
    """A fault: its number, its position in percent of the width, and its seconds since the start."""

    number: int
    left: float
    offset_s: float
    fault: Fault


class Timeline(NamedTuple):
    """The timeline of a job: a row for each slot, its faults, and the number of slots that are not shown."""

    rows: list[Row]
    marks: list[Mark]
    left_out: int


def frame_of(record: JobRecord, times: Sequence[float]) -> Frame:
    """Return the times that the charts of a job show.

    Args:
        record: The job.
        times: Times of measured values; they count if the times of the job are unknown or wrong.
    """
    times_seen = [change.at for change in record.changes] + list(times)
    begin = record.started_at or min(times_seen, default=0.0)
    if times_seen and not begin - 86400 <= min(times_seen) <= begin + 30 * 86400:
        begin = min(times_seen)
    end = max([record.ended_at or begin, *times_seen])
    starts: dict[int, float] = {}
    for change in record.changes:
        starts[change.attempt] = min(change.at, starts.get(change.attempt, change.at))
    later = [at for attempt, at in sorted(starts.items()) if attempt > 1]
    return Frame(begin, max(end, begin + 1.0), tuple(later[-_MOST_BARS:]))


def lay_out(record: JobRecord, frame: Frame) -> Timeline:
    """Return the timeline of a job within a frame."""
    by_slot: dict[str, list[Change]] = {}
    for change in record.changes:
        by_slot.setdefault(change.slot, []).append(change)
    ranks = {task.task: rank for rank, task in enumerate(record.tasks)}
    ordered = sorted(by_slot.items(), key=lambda item: (ranks.get(item[1][-1].task, len(ranks)), item[0]))
    faults = list(enumerate(record.faults, 1))[-_MOST_FAULTS:]
    is_running = record.state == "running"
    return Timeline(
        [_row(slot, changes, frame, is_running=is_running) for slot, changes in ordered[:_MOST_ROWS]],
        [
            Mark(number, _percent(frame.share(fault.at)), max(0.0, fault.at - frame.begin), fault)
            for number, fault in faults
        ],
        max(0, len(ordered) - _MOST_ROWS),
    )


def _row(slot: str, changes: Sequence[Change], frame: Frame, *, is_running: bool) -> Row:
    changes = sorted(changes, key=lambda change: (change.attempt, change.at))
    task = next((change.task for change in reversed(changes) if change.task), "")
    pairs = zip(changes, [*changes[1:], None], strict=True)
    bars = [
        _bar(change, following, frame)
        for change, following in pairs
        if change.phase != "exited" and (following or is_running)  # else its end is unknown
    ][-_MOST_BARS:]
    label = task if task in ("", slot) else f"{task} ({slot})"
    return Row(label or f"{slot} (spare)", bars, "; ".join(bar.label for bar in bars))


def _bar(change: Change, following: Change | None, frame: Frame) -> Bar:
    begin, end = frame.share(change.at), frame.share(following.at) if following else 1.0
    ended = following.text if following is not None and following.phase == "exited" else ""
    kind = "failed" if following is not None and following.failed and change.phase != "waiting" else change.phase
    seconds = max(0.0, (following.at if following else frame.end) - change.at)
    label = f"attempt {change.attempt}: {change.phase} for {seconds:.1f} s"
    return Bar(_percent(begin), max(0.2, _percent(end - begin)), kind, f"{label}, {ended}" if ended else label)


def _percent(share: float) -> float:
    return round(100 * share, 3)
