"""State of the live console: a fold over the events, without I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any

from fleet import events
from fleet.console.formatting import format_size
from fleet.console.messages import NEVER_STARTED
from fleet.console.tables import STOPPED, Row
from fleet.errors import order
from fleet.events import AttemptEnded, JobResult, Outcome, Progress, TaskState, Usage
from provision.quantities import counted

_POINTS_MAX = 128  # of a curve
_WARM_STEPS = 10  # the first steps are slower than the others


@dataclass(frozen=True)
class Curve:
    """Values of a metric, of one task, in bounded memory.

    Attributes:
        task: Task that reports them.
        points: Means of `every` consecutive values.
        every: Number of values in a point.
        waiting: Values of the next point.
        latest: The latest value.
    """

    task: str = ""
    points: tuple[float, ...] = ()
    every: int = 1
    waiting: tuple[float, ...] = ()
    latest: float | None = None

    def add(self, value: float) -> Curve:
        """Return the curve after a further value; repeated values and values that are not finite are left out."""
        if not math.isfinite(value) or value == self.latest:
            return self
        waiting = (*self.waiting, value)
        if len(waiting) < self.every:
            return replace(self, waiting=waiting, latest=value)
        points = (*self.points, _mean(waiting))
        if len(points) < _POINTS_MAX:
            return replace(self, points=points, waiting=(), latest=value)
        merged = tuple(_mean(points[at : at + 2]) for at in range(0, len(points), 2))
        return replace(self, points=merged, every=2 * self.every, waiting=(), latest=value)


def draw_curve(points: Sequence[float], width: int, levels: str = "▁▂▃▄▅▆▇█") -> str:
    """Draw values as characters of rising height.

    Args:
        points: Finite values.
        width: Largest number of characters.
        levels: Characters, the lowest first.

    Returns:
        At most `width` characters; empty if there are fewer than two values.
    """
    if len(points) < 2 or width < 2:
        return ""
    count = min(width, len(points))
    bounds = [len(points) * number // count for number in range(count + 1)]
    values = [_mean(points[start:end]) for start, end in pairwise(bounds)]
    low, half = min(values) / 2, max(values) / 2 - min(values) / 2  # halves cannot overflow
    return "".join(levels[round((value / 2 - low) / half * (len(levels) - 1)) if half else 0] for value in values)


def estimate_remaining_s(rows: Iterable[Row], now: float) -> float | None:
    """Return the seconds until the last running task ends at its current rate; None if unknown.

    Time for validation and for checkpoints between epochs is included after the second epoch.

    Args:
        rows: Tasks.
        now: Seconds since the epoch.
    """
    estimates = [
        left for row in rows if row.running and not row.lost and (left := _remaining_s(row, now)) is not None
    ]
    return max(estimates, default=None)


def _remaining_s(row: Row, now: float) -> float | None:
    at = row.progress
    epoch_s = row.epoch_span_s if at.epoch_s is None else at.epoch_s
    if epoch_s > 0 and at.epochs_done is not None and at.epochs > 0 and row.epoch_at:
        left = max(0, at.epochs - at.epochs_done)
        return max(0.0, left * epoch_s - (now - row.epoch_at)) if left else 0.0
    steps = _remaining_steps(at)
    if steps is None or at.steps_per_s <= 0 or row.position < _WARM_STEPS:
        return None
    return steps / at.steps_per_s


def _remaining_steps(at: Progress) -> int | None:
    if at.step < 0 or at.steps <= 0:
        return None
    epochs = at.epochs - at.epoch if at.epochs > 0 and at.epoch > 0 else 0
    if at.epoch > 0 and at.epochs <= 0:
        return None
    return max(0, epochs) * at.steps + max(0, at.steps - at.step)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


class Stage(Enum):
    """Stage of a command."""

    UP = "getting ready"
    PUSH = "pushing"
    PULL = "pulling"
    QUEUE = "queued"
    JOB = "training"
    DOWN = "deleting"


@dataclass(frozen=True)
class View:
    """Everything that the live console shows; times in seconds since the epoch, 0: unknown.

    Attributes:
        fleet: Name of the fleet.
        provider: Provider of its instances.
        price_usd_h: US dollars an hour.
        spent_usd: Cost of the fleet until `priced_at`.
        priced_at: When the command reported the price.
        delete_at: When its provider deletes it.
        stop_at: When its hosts power off.
        began_at: When the first event came.
        stage: Current stage of the command; None before the first.
        job: Its identifier.
        script: Script that it runs.
        after: The job that it waits for, in the stage `QUEUE`.
        attempt: The latest one.
        attempts: Largest number of attempts.
        retry_at: Earliest start of the next attempt, between attempts.
        started_at: When the job started.
        ended_at: When this computer received its end.
        rows: Hosts or tasks, in the order of their names.
        loss: Curve of the loss in the present attempt.
        result: How the job ended.
        down: The deleted or stopped fleet.
        is_over: The command ends; an error below the last frame reports a result other than success.
    """

    fleet: str = ""
    provider: str = ""
    price_usd_h: float = 0.0
    spent_usd: float = 0.0
    priced_at: float = 0.0
    delete_at: float = 0.0
    stop_at: float = 0.0
    began_at: float = 0.0
    stage: Stage | None = None
    job: str = ""
    script: str = ""
    after: str = ""
    attempt: int = 0
    attempts: int = 1
    retry_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    rows: tuple[Row, ...] = field(default=())
    loss: Curve = field(default_factory=Curve)
    result: JobResult | None = None
    down: events.FleetDown | events.FleetStopped | None = None
    is_over: bool = False

    def cost_usd(self, now: float) -> float:
        """Return the cost of the fleet until `now`, in USD."""
        return self.spent_usd + self.price_usd_h * max(0.0, now - self.priced_at) / 3600


def apply(view: View, event: events.Event, now: float) -> View:
    """Return `view` after `event`, which this computer received at `now`."""
    reducer = _REDUCERS.get(type(event))
    after = reducer(view, event, now) if reducer else view
    return after if after.began_at else replace(after, began_at=now)


def _row(view: View, name: str) -> Row:
    return next((row for row in view.rows if row.name == name), Row(name, slot=name))


def _put(view: View, row: Row) -> View:
    """Return `view` with `row` in place of the row of that name, or added if no such row exists."""
    others = [other for other in view.rows if other.name != row.name]
    return replace(view, rows=tuple(sorted((*others, row), key=lambda row: order(row.name))))


def _update(view: View, name: str, **changes: Any) -> View:
    return _put(view, replace(_row(view, name), **changes))


def _enter(view: View, stage: Stage) -> View:
    """Return `view` in `stage`; no row is ready in a new stage."""
    if view.stage is stage:
        return view
    return replace(view, stage=stage, rows=tuple(replace(row, ready=False) for row in view.rows))


def _fleet_opened(view: View, event: events.FleetOpened, now: float) -> View:
    by_name = {row.name: row for row in view.rows}
    names = sorted(event.hosts, key=order)
    return replace(
        view,
        fleet=event.fleet,
        provider=event.provider,
        price_usd_h=event.price_usd_h,
        spent_usd=event.cost_usd,
        priced_at=now,
        delete_at=event.delete_at,
        stop_at=event.stop_at,
        rows=tuple(by_name.get(name, Row(name, slot=name, step_text="connecting")) for name in names),
    )


def _instance_changed(view: View, event: events.InstanceChanged, _: float) -> View:
    stage = Stage.DOWN if event.step.startswith("delet") else Stage.UP
    address = _row(view, event.instance).address
    row = Row(event.instance, slot=event.instance, address=address, step_text=event.step, ready=event.done)
    return _put(_enter(view, stage), row)


def _bootstrap_progress(view: View, event: events.BootstrapProgress, _: float) -> View:
    changes = {"ready": event.done, "detail": event.detail, "part": event.part, "whole": event.whole}
    return _update(_enter(view, Stage.UP), event.host, step_text=event.step, **changes)


def _push_progress(view: View, event: events.PushProgress, _: float) -> View:
    done = event.sent >= event.total
    return _transfer(_enter(view, Stage.PUSH), event, "pushed" if done else "pushing", event.sent, done=done)


def _pull_progress(view: View, event: events.PullProgress, _: float) -> View:
    step = "pulled" if event.done else "pulling" if event.total else "listing"
    return _transfer(_enter(view, Stage.PULL), event, step, event.received, done=event.done)


def _transfer(
    view: View, event: events.PushProgress | events.PullProgress, step: str, part: int, *, done: bool
) -> View:
    text = f"{format_size(part)} of {format_size(event.total)}, {counted(event.files, 'file')}" if event.total else ""
    return _update(view, event.host, step_text=step, detail=text, part=part, whole=event.total, ready=done)


def _job_started(view: View, event: events.JobStarted, _: float) -> View:
    return replace(
        view,
        stage=Stage.JOB,
        job=event.job,
        script=event.script,
        attempt=event.attempt,
        attempts=event.attempts,
        retry_at=0.0,
        started_at=event.started_at,
        ended_at=0.0,
        result=None,
        rows=_job_rows(view, event.members, event.attempt),
        loss=Curve(),
    )


def _job_queued(view: View, event: events.JobQueued, _: float) -> View:
    rows = tuple(replace(row, step_text=row.step_text or "queued") for row in _job_rows(view, event.members, 1))
    view = replace(view, stage=Stage.QUEUE, result=None, rows=rows, started_at=event.queued_at)
    return replace(view, job=event.job, script=event.script, after=event.after)


def _job_rows(view: View, members: Sequence[events.Member], attempt: int) -> tuple[Row, ...]:
    lost = {row.name: row.lost for row in view.rows}
    tasks = {member.task for member in members}
    return tuple(
        Row(
            member.task or member.slot,
            slot=member.slot,
            lost=lost.get(member.slot, ""),
            address=member.address,
            step_text="" if member.task else "spare",
            endpoint=member.endpoint,
            attempt=attempt,
        )
        for member in sorted(members, key=lambda member: order(member.task or member.slot))
        if member.task or member.slot not in tasks
    )


def _connection(view: View, host: str, lost: str) -> View:
    rows = (replace(row, lost=lost) if host == (row.slot or row.name) else row for row in view.rows)
    return replace(view, rows=tuple(rows))


def _fleet_resized(view: View, event: events.FleetResized, _: float) -> View:
    rows = tuple(replace(row, ready=True, step_text="ready") for row in view.rows)
    return replace(view, fleet=event.fleet, stage=Stage.UP, rows=rows)


def _fleet_down(view: View, event: events.FleetDown | events.FleetStopped, now: float) -> View:
    return replace(view, fleet=event.fleet, stage=Stage.DOWN, down=event, ended_at=now)


def _enter_attempt(view: View, task: str, attempt: int) -> View | None:
    """Return `view` prepared for events of `attempt`; None if the attempt is an earlier one."""
    if attempt < max(view.attempt, _row(view, task).attempt):
        return None
    if attempt == view.attempt:
        return view
    rows = tuple(_reset(row, attempt) for row in view.rows)
    return replace(view, attempt=attempt, retry_at=0.0, loss=Curve(), rows=rows)


def _reset(row: Row, attempt: int) -> Row:
    """Return a row for the start of an attempt."""
    if row.phase is None:
        return replace(row, attempt=attempt)
    return Row(row.name, slot=row.slot, address=row.address, endpoint=row.endpoint, lost=row.lost, attempt=attempt)


def _task_state(view: View, event: TaskState, _: float) -> View:
    current = _enter_attempt(view, event.task, event.attempt)
    if current is None:
        return view
    row = _row(current, event.task)
    before = [other for other in current.rows if other.slot == event.slot and other.name != row.name]
    if event.slot != row.slot:  # another host has taken it over
        row = replace(row, slot=event.slot, address=before[0].address if before else "", endpoint="", lost="")
    current = replace(current, rows=tuple(other for other in current.rows if other not in before))
    step_text = "" if event.started else NEVER_STARTED
    return _put(current, replace(row, phase=event.phase, exit=event.exit, reason=event.reason, step_text=step_text))


def _progress(view: View, event: Progress, now: float) -> View:
    current = _enter_attempt(view, event.task, event.attempt)
    if current is None:
        return view
    row = _row(current, event.task)
    if "loss" in event.metrics and current.loss.task in ("", event.task):
        current = replace(current, loss=replace(current.loss, task=event.task).add(event.metrics["loss"]))
    if event.epochs_done is not None and event.epochs_done != row.progress.epochs_done:
        row = replace(row, epoch_at=now, epoch_span_s=now - row.epoch_at if row.epoch_at else 0.0)
    return _put(current, replace(row, progress=replace(event, metrics={**row.progress.metrics, **event.metrics})))


def _usage(view: View, event: Usage, _: float) -> View:
    gpus = event.gpus
    return _update(
        view,
        event.task,
        cpu_percent=event.cpu_percent,
        memory_bytes=event.memory_bytes,
        gpu_percent=sum(gpu.percent for gpu in gpus) / len(gpus) if gpus else -1.0,
        gpu_memory_mib=sum(gpu.memory_mib for gpu in gpus) if gpus else -1,
    )


def _attempt_ended(view: View, event: AttemptEnded, now: float) -> View:
    if event.attempt < view.attempt:
        return view
    return replace(view, retry_at=now + event.retry_s, attempts=max(view.attempts, event.attempts))


def _job_result(view: View, event: JobResult, now: float) -> View:
    rows = view.rows
    if event.outcome is Outcome.SUCCEEDED:  # tasks that a signal ended then were not needed any more
        rows = tuple(replace(row, step_text=STOPPED) if row.exit and row.exit.signal else row for row in rows)
    attempt = max(view.attempt, event.attempt)
    return replace(view, job=event.job, attempt=attempt, result=event, ended_at=now, rows=rows)


_REDUCERS: dict[type, Callable[[View, Any, float], View]] = {
    events.Quoted: lambda view, event, _: replace(view, fleet=event.fleet),
    events.FleetOpened: _fleet_opened,
    events.PriceChanged: lambda view, event, now: replace(
        view, price_usd_h=event.price_usd_h, spent_usd=event.cost_usd, priced_at=now
    ),
    events.ZoneTried: lambda view, *_: _enter(view, Stage.UP),
    events.InstanceChanged: _instance_changed,
    events.HostConnected: lambda view, event, _: _update(
        view, event.host, step_text="ready", address=event.address, lost=""
    ),
    events.BootstrapProgress: _bootstrap_progress,
    events.PushProgress: _push_progress,
    events.PullProgress: _pull_progress,
    events.TaskPrepared: lambda view, event, _: _update(
        view, event.slot, step_text="prepared", ready=True, endpoint=event.endpoint
    ),
    events.JobStarted: _job_started,
    events.JobQueued: _job_queued,
    events.ConnectionLost: lambda view, event, _: _connection(view, event.host, event.reason or "no answer"),
    events.ConnectionRestored: lambda view, event, _: _connection(view, event.host, ""),
    events.FleetResized: _fleet_resized,
    events.FleetDown: _fleet_down,
    events.FleetStopped: _fleet_down,
    TaskState: _task_state,
    Progress: _progress,
    events.TaskAwaited: lambda view, event, _: (
        _update(view, event.task, awaited=True) if event.attempt == view.attempt else view
    ),
    Usage: _usage,
    AttemptEnded: _attempt_ended,
    JobResult: _job_result,
}
