"""State of the live console, from the events; without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from fleet import events
from fleet.console.formatting import format_size
from fleet.console.messages import NEVER_STARTED
from fleet.console.tables import STOPPED, WARM_STEPS, Row
from fleet.errors import order
from fleet.events import AttemptEnded, JobResult, Outcome, Progress, TaskState, Usage
from provision.quantities import counted


def estimate_remaining_s(rows: Iterable[Row], now: float) -> float | None:
    """Return the seconds until the last running task ends at its current rate; None if unknown.

    Time for validation and for checkpoints between epochs is included after the second epoch.

    Args:
        rows: Tasks.
        now: Seconds since the epoch.
    """
    estimates = [_remaining_s(row, now) for row in rows if row.running and not row.lost]
    return max((seconds for seconds in estimates if seconds is not None), default=None)


def _remaining_s(row: Row, now: float) -> float | None:
    at = row.progress
    epoch_s = row.epoch_span_s if at.epoch_s is None else at.epoch_s
    if epoch_s > 0 and at.epochs_done is not None and at.epochs > 0 and row.epoch_at:
        left = max(0, at.epochs - at.epochs_done)
        return max(0.0, left * epoch_s - (now - row.epoch_at)) if left else 0.0
    if at.step < 0 or at.steps <= 0 or at.steps_per_s <= 0 or row.position < WARM_STEPS:
        return None
    if at.epoch > 0 and at.epochs <= 0:
        return None
    epochs = max(0, at.epochs - at.epoch) if at.epoch > 0 else 0
    return (epochs * at.steps + max(0, at.steps - at.step)) / at.steps_per_s


class Stage(Enum):
    """Stage of a command."""

    UP = "getting ready"
    PUSH = "pushing"
    PULL = "pulling"
    QUEUE = "queued"
    JOB = "training"
    DOWN = "deleting"


class View:
    """Everything that the live console shows; times in seconds since the epoch, 0: unknown.

    Attributes:
        fleet: Name of the fleet.
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
        result: How the job ended.
        down: The fleet was deleted or stopped.
        is_over: The command ends; an error below the last frame reports a result other than success.
    """

    def __init__(self) -> None:
        self.fleet = self.job = self.script = self.after = ""
        self.price_usd_h = self.spent_usd = self.priced_at = self.delete_at = self.stop_at = 0.0
        self.began_at = self.retry_at = self.started_at = self.ended_at = 0.0
        self.stage: Stage | None = None
        self.attempt, self.attempts = 0, 1
        self.result: JobResult | None = None
        self.down = self.is_over = False
        self._rows: dict[str, Row] = {}  # are replaced, never changed

    @property
    def rows(self) -> list[Row]:
        """Return hosts or tasks in the order of their names."""
        return sorted(self._rows.values(), key=lambda row: order(row.name))

    def cost_usd(self, now: float) -> float:
        """Return the cost of the fleet until `now`, in USD."""
        return self.spent_usd + self.price_usd_h * max(0.0, now - self.priced_at) / 3600

    def take(self, event: events.Event, now: float) -> None:
        """Take an event, which this computer received at `now`."""
        self.began_at = self.began_at or now
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, now)

    def row(self, name: str) -> Row:
        """Return the row of a host or task, which is added if it does not exist."""
        return self._rows.setdefault(name, Row(name, slot=name))

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a row."""
        self.put(replace(self.row(name), **changes))

    def put(self, *rows: Row) -> None:
        """Put rows in place of those of the same names."""
        self._rows |= {row.name: row for row in rows}

    def keep(self, rows: Iterable[Row]) -> None:
        """Keep no other rows than these."""
        self._rows = {row.name: row for row in rows}

    def enter(self, stage: Stage) -> None:
        """Begin a stage; no row is ready in a new one."""
        if self.stage is not stage:
            self.stage = stage
            self.put(*(replace(row, ready=False) for row in self.rows))

    def enter_attempt(self, task: str, attempt: int) -> bool:
        """Prepare for an event of an attempt, which may be a new one; return False if it is an earlier one."""
        if attempt < max(self.attempt, self.row(task).attempt):
            return False
        if attempt > self.attempt:
            self.attempt, self.retry_at = attempt, 0.0
            for row in self.rows:
                fresh = Row(row.name, row.slot, row.address, endpoint=row.endpoint, lost=row.lost)
                self.put(replace(row if row.phase is None else fresh, attempt=attempt))
        return True


def _fleet_opened(view: View, event: events.FleetOpened, now: float) -> None:
    view.fleet, view.delete_at, view.stop_at = event.fleet, event.delete_at, event.stop_at
    _price_changed(view, event, now)
    before = {row.name: row for row in view.rows}
    view.keep(before.get(name) or Row(name, slot=name, step_text="connecting") for name in event.hosts)


def _price_changed(view: View, event: events.FleetOpened | events.PriceChanged, now: float) -> None:
    view.price_usd_h, view.spent_usd, view.priced_at = event.price_usd_h, event.cost_usd, now


def _instance_changed(view: View, event: events.InstanceChanged, _: float) -> None:
    view.enter(Stage.DOWN if event.step.startswith("delet") else Stage.UP)
    name, address = event.instance, view.row(event.instance).address
    view.put(Row(name, slot=name, address=address, step_text=event.step, ready=event.done))


def _bootstrap_progress(view: View, event: events.BootstrapProgress, _: float) -> None:
    view.enter(Stage.UP)
    changes = {"ready": event.done, "detail": event.detail, "part": event.part, "whole": event.whole}
    view.update(event.host, step_text=event.step, **changes)


def _push_progress(view: View, event: events.PushProgress, _: float) -> None:
    is_done = event.sent >= event.total
    view.enter(Stage.PUSH)
    _transfer(view, event, "pushed" if is_done else "pushing", event.sent, is_done=is_done)


def _pull_progress(view: View, event: events.PullProgress, _: float) -> None:
    step = "pulled" if event.done else "pulling" if event.total else "listing"
    view.enter(Stage.PULL)
    _transfer(view, event, step, event.received, is_done=event.done)


def _transfer(
    view: View, event: events.PushProgress | events.PullProgress, step: str, part: int, *, is_done: bool
) -> None:
    sizes = f"{format_size(part)} of {format_size(event.total)}"
    detail = f"{sizes}, {counted(event.files, 'file')}" if event.total else ""
    view.update(event.host, step_text=step, detail=detail, part=part, whole=event.total, ready=is_done)


def _connection(view: View, host: str, lost: str) -> None:
    view.put(*(replace(row, lost=lost) for row in view.rows if row.slot == host))


def _fleet_resized(view: View, event: events.FleetResized, _: float) -> None:
    view.fleet, view.stage = event.fleet, Stage.UP
    view.put(*(replace(row, ready=True, step_text="ready") for row in view.rows))


def _fleet_down(view: View, event: events.FleetDown | events.FleetStopped, now: float) -> None:
    view.fleet, view.stage, view.down, view.ended_at = event.fleet, Stage.DOWN, True, now


def _job_queued(view: View, event: events.JobQueued, _: float) -> None:
    view.stage, view.result, view.started_at = Stage.QUEUE, None, event.queued_at
    view.job, view.script, view.after = event.job, event.script, event.after
    _set_members(view, event.members, 1, "queued")


def _job_started(view: View, event: events.JobStarted, _: float) -> None:
    view.stage, view.result, view.started_at = Stage.JOB, None, event.started_at
    view.job, view.script = event.job, event.script
    view.attempt, view.attempts = event.attempt, event.attempts
    view.retry_at = view.ended_at = 0.0
    _set_members(view, event.members, event.attempt, "")


def _set_members(view: View, members: Sequence[events.Member], attempt: int, state: str) -> None:
    lost = {row.name: row.lost for row in view.rows}
    tasks = {member.task for member in members}
    view.keep(
        Row(
            member.task or member.slot,
            slot=member.slot,
            lost=lost.get(member.slot, ""),
            address=member.address,
            step_text=state if member.task else "spare",
            endpoint=member.endpoint,
            attempt=attempt,
        )
        for member in members
        if member.task or member.slot not in tasks
    )


def _task_state(view: View, event: TaskState, _: float) -> None:
    if not view.enter_attempt(event.task, event.attempt):
        return
    row = view.row(event.task)
    replaced = [other for other in view.rows if other.slot == event.slot and other is not row]
    if event.slot != row.slot:  # another host has taken it over
        address = replaced[0].address if replaced else ""
        row = replace(row, slot=event.slot, address=address, endpoint="", lost="")
    view.keep(other for other in view.rows if other not in replaced)
    step_text = "" if event.started else NEVER_STARTED
    view.put(replace(row, phase=event.phase, exit=event.exit, reason=event.reason, step_text=step_text))


def _progress(view: View, event: Progress, now: float) -> None:
    if not view.enter_attempt(event.task, event.attempt):
        return
    row = view.row(event.task)
    if event.epochs_done is not None and event.epochs_done != row.progress.epochs_done:
        row = replace(row, epoch_at=now, epoch_span_s=now - row.epoch_at if row.epoch_at else 0.0)
    view.put(replace(row, progress=event._replace(metrics={**row.progress.metrics, **event.metrics})))


def _task_awaited(view: View, event: events.TaskAwaited, _: float) -> None:
    if event.attempt == view.attempt:
        view.update(event.task, awaited=True)


def _usage(view: View, event: Usage, _: float) -> None:
    gpus = event.gpus
    percent = sum(gpu.percent for gpu in gpus) / len(gpus) if gpus else -1.0
    memory = sum(gpu.memory_mib for gpu in gpus) * 2**20 if gpus else -1
    tasks = {"cpu_percent": event.cpu_percent, "memory_bytes": event.memory_bytes}
    view.update(event.task, **tasks, gpu_percent=percent, gpu_memory=memory)


def _attempt_ended(view: View, event: AttemptEnded, now: float) -> None:
    if event.attempt >= view.attempt:
        view.retry_at, view.attempts = now + event.retry_s, max(view.attempts, event.attempts)


def _job_result(view: View, event: JobResult, now: float) -> None:
    view.job, view.attempt = event.job, max(view.attempt, event.attempt)
    view.result, view.ended_at = event, now
    if event.outcome is Outcome.SUCCEEDED:  # tasks that a signal ended then were not needed any more
        view.put(*(replace(row, step_text=STOPPED) for row in view.rows if row.exit and row.exit.signal))


_HANDLERS: dict[type, Callable[[View, Any, float], None]] = {
    events.Quoted: lambda view, event, _: setattr(view, "fleet", event.fleet),
    events.FleetOpened: _fleet_opened,
    events.PriceChanged: _price_changed,
    events.ZoneTried: lambda view, *_: view.enter(Stage.UP),
    events.InstanceChanged: _instance_changed,
    events.HostConnected: lambda view, event, _: view.update(
        event.host, step_text="ready", address=event.address, lost=""
    ),
    events.BootstrapProgress: _bootstrap_progress,
    events.PushProgress: _push_progress,
    events.PullProgress: _pull_progress,
    events.TaskPrepared: lambda view, event, _: view.update(
        event.slot, step_text="prepared", ready=True, endpoint=event.endpoint
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
    events.TaskAwaited: _task_awaited,
    Usage: _usage,
    AttemptEnded: _attempt_ended,
    JobResult: _job_result,
}
