"""State of the live console: a fold over the events, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from fleet import events
from fleet.console.estimates import Curve
from fleet.console.formatting import format_size
from fleet.console.messages import NEVER_STARTED
from fleet.console.tables import STOPPED, Row
from fleet.events import AttemptEnded, JobResult, Outcome, Progress, TaskState, Usage
from fleet.folding import order
from provision.quantities import counted


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
    if not view.began_at:
        view = replace(view, began_at=now)
    if isinstance(event, (JobResult, events.FleetDown, events.FleetStopped)):
        view = replace(view, ended_at=now)
    elif isinstance(event, (events.FleetOpened, events.PriceChanged)):
        view = replace(view, priced_at=now)
    elif isinstance(event, AttemptEnded) and event.attempt >= view.attempt:
        view = replace(view, retry_at=now + event.retry_s, attempts=max(view.attempts, event.attempts))
    reducer = _REDUCERS.get(type(event))
    after = reducer(view, event) if reducer else view
    if isinstance(event, Progress) and after is not view:
        done = _row(view, event.task).progress.epochs_done
        if event.epochs_done is not None and event.epochs_done != done:
            began = _row(after, event.task).epoch_at
            return _update(after, event.task, epoch_at=now, epoch_span_s=now - began if began else 0.0)
    return after


def _row(view: View, name: str) -> Row:
    return next((row for row in view.rows if row.name == name), Row(name, slot=name))


def _put(view: View, row: Row) -> View:
    """Return `view` with `row` in place of the row of that name, or added if no such row exists."""
    for number, existing in enumerate(view.rows):
        if existing.name == row.name:
            return replace(view, rows=(*view.rows[:number], row, *view.rows[number + 1 :]))
    return replace(view, rows=tuple(sorted((*view.rows, row), key=lambda row: order(row.name))))


def _update(view: View, name: str, **changes: Any) -> View:
    return _put(view, replace(_row(view, name), **changes))


def _stage(view: View, stage: Stage) -> View:
    """Return `view` in `stage`; no row is ready in a new stage."""
    if view.stage is stage:
        return view
    return replace(view, stage=stage, rows=tuple(replace(row, ready=False) for row in view.rows))


def _fleet_opened(view: View, event: events.FleetOpened) -> View:
    by_name = {row.name: row for row in view.rows}
    rows = tuple(
        by_name.get(name, Row(name, slot=name, step_text="connecting")) for name in sorted(event.hosts, key=order)
    )
    return replace(
        view,
        fleet=event.fleet,
        provider=event.provider,
        price_usd_h=event.price_usd_h,
        spent_usd=event.cost_usd,
        delete_at=event.delete_at,
        stop_at=event.stop_at,
        rows=rows,
    )


def _price_changed(view: View, event: events.PriceChanged) -> View:
    return replace(view, price_usd_h=event.price_usd_h, spent_usd=event.cost_usd)


def _instance_changed(view: View, event: events.InstanceChanged) -> View:
    stage = Stage.DOWN if event.step.startswith("delet") else Stage.UP
    address = _row(view, event.instance).address
    row = Row(event.instance, slot=event.instance, address=address, step_text=event.step, ready=event.done)
    return _put(_stage(view, stage), row)


def _host_connected(view: View, event: events.HostConnected) -> View:
    return _update(view, event.host, step_text="ready", address=event.address, lost="")


def _bootstrap_progress(view: View, event: events.BootstrapProgress) -> View:
    return _update(
        _stage(view, Stage.UP),
        event.host,
        step_text=event.step,
        ready=event.done,
        detail=event.detail,
        part=event.part,
        whole=event.whole,
    )


def _push_progress(view: View, event: events.PushProgress) -> View:
    done = event.sent >= event.total
    return _update_transfer(_stage(view, Stage.PUSH), event, "pushed" if done else "pushing", event.sent, done=done)


def _update_transfer(
    view: View, event: events.PushProgress | events.PullProgress, step: str, part: int, *, done: bool
) -> View:
    text = f"{format_size(part)} of {format_size(event.total)}, {counted(event.files, 'file')}" if event.total else ""
    return _update(view, event.host, step_text=step, detail=text, part=part, whole=event.total, ready=done)


def _pull_progress(view: View, event: events.PullProgress) -> View:
    step = "pulled" if event.done else "pulling" if event.total else "listing"
    return _update_transfer(_stage(view, Stage.PULL), event, step, event.received, done=event.done)


def _task_prepared(view: View, event: events.TaskPrepared) -> View:
    return _update(view, event.slot, step_text="prepared", ready=True, endpoint=event.endpoint)


def _job_started(view: View, event: events.JobStarted) -> View:
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


def _job_queued(view: View, event: events.JobQueued) -> View:
    rows = (replace(row, step_text=row.step_text or "queued") for row in _job_rows(view, event.members, 1))
    return replace(
        view,
        stage=Stage.QUEUE,
        job=event.job,
        script=event.script,
        after=event.after,
        started_at=event.queued_at,
        result=None,
        rows=tuple(rows),
    )


def _job_rows(view: View, members: Sequence[events.Member], attempt: int) -> tuple[Row, ...]:
    lost = {row.name: row.lost for row in view.rows}
    tasks = {member.task for member in members}
    shown = [member for member in members if member.task or member.slot not in tasks]
    rows = [
        Row(
            member.task or member.slot,
            slot=member.slot,
            lost=lost.get(member.slot, ""),
            address=member.address,
            step_text="" if member.task else "spare",
            endpoint=member.endpoint,
            attempt=attempt,
        )
        for member in sorted(shown, key=lambda member: order(member.task or member.slot))
    ]
    return tuple(rows)


def _connection(view: View, host: str, reason: str) -> View:
    rows = tuple(replace(row, lost=reason) if host == (row.slot or row.name) else row for row in view.rows)
    return replace(view, rows=rows)


def _connection_lost(view: View, event: events.ConnectionLost) -> View:
    return _connection(view, event.host, event.reason or "no answer")


def _connection_restored(view: View, event: events.ConnectionRestored) -> View:
    return _connection(view, event.host, "")


def _fleet_resized(view: View, event: events.FleetResized) -> View:
    rows = tuple(replace(row, ready=True, step_text="ready") for row in view.rows)
    return replace(view, fleet=event.fleet, stage=Stage.UP, rows=rows)


def _fleet_down(view: View, event: events.FleetDown | events.FleetStopped) -> View:
    return replace(view, fleet=event.fleet, stage=Stage.DOWN, down=event)


def _enter_attempt(view: View, task: str, attempt: int) -> View | None:
    """Return `view` prepared for events of `attempt`; None if the attempt is an earlier one."""
    if attempt < max(view.attempt, _row(view, task).attempt):
        return None
    if attempt > view.attempt:
        view = replace(view, attempt=attempt, retry_at=0.0, loss=Curve())
        view = replace(view, rows=tuple(_reset(row, attempt) for row in view.rows))
    return view


def _reset(row: Row, attempt: int) -> Row:
    """Return a row for the start of an attempt."""
    if row.phase is None:
        return replace(row, attempt=attempt)
    return Row(row.name, slot=row.slot, address=row.address, endpoint=row.endpoint, lost=row.lost, attempt=attempt)


def _task_state(view: View, event: TaskState) -> View:
    current = _enter_attempt(view, event.task, event.attempt)
    if current is None:
        return view
    row = _row(current, event.task)
    before = [other for other in current.rows if other.slot == event.slot and other.name != row.name]
    if event.slot != row.slot:  # another host has taken it over
        row = replace(row, slot=event.slot, address=before[0].address if before else "", endpoint="", lost="")
    current = replace(current, rows=tuple(other for other in current.rows if other not in before))
    row = replace(row, phase=event.phase, exit=event.exit, reason=event.reason)
    row = replace(row, step_text="" if event.started else NEVER_STARTED)
    return _put(current, row)


def _progress(view: View, event: Progress) -> View:
    current = _enter_attempt(view, event.task, event.attempt)
    if current is None:
        return view
    metrics = {**_row(current, event.task).progress.metrics, **event.metrics}
    if "loss" in event.metrics and current.loss.task in ("", event.task):
        current = replace(current, loss=replace(current.loss, task=event.task).add(event.metrics["loss"]))
    return _update(current, event.task, progress=replace(event, metrics=metrics))


def _usage(view: View, event: Usage) -> View:
    gpus = event.gpus
    return _update(
        view,
        event.task,
        cpu_percent=event.cpu_percent,
        memory_bytes=event.memory_bytes,
        gpu_percent=sum(gpu.percent for gpu in gpus) / len(gpus) if gpus else -1.0,
        gpu_memory_mib=sum(gpu.memory_mib for gpu in gpus) if gpus else -1,
    )


def _job_result(view: View, event: JobResult) -> View:
    rows = view.rows
    if event.outcome is Outcome.SUCCEEDED:  # tasks that a signal ended then were not needed any more
        rows = tuple(replace(row, step_text=STOPPED) if row.exit and row.exit.signal else row for row in rows)
    return replace(view, job=event.job, attempt=max(view.attempt, event.attempt), result=event, rows=rows)


_REDUCERS: dict[type, Callable[[View, Any], View]] = {
    events.Quoted: lambda view, event: replace(view, fleet=event.fleet),
    events.FleetOpened: _fleet_opened,
    events.PriceChanged: _price_changed,
    events.ZoneTried: lambda view, _: _stage(view, Stage.UP),
    events.InstanceChanged: _instance_changed,
    events.HostConnected: _host_connected,
    events.BootstrapProgress: _bootstrap_progress,
    events.PushProgress: _push_progress,
    events.PullProgress: _pull_progress,
    events.TaskPrepared: _task_prepared,
    events.JobStarted: _job_started,
    events.JobQueued: _job_queued,
    events.ConnectionLost: _connection_lost,
    events.ConnectionRestored: _connection_restored,
    events.FleetResized: _fleet_resized,
    events.FleetDown: _fleet_down,
    events.FleetStopped: _fleet_down,
    TaskState: _task_state,
    Progress: _progress,
    events.TaskAwaited: lambda view, event: (
        _update(view, event.task, awaited=True) if event.attempt == view.attempt else view
    ),
    Usage: _usage,
    JobResult: _job_result,
}
