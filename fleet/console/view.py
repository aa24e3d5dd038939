"""State of the live console, from the events; without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from fleet import events
from fleet.console.formatting import format_size
from fleet.console.messages import NEVER_STARTED
from fleet.console.tables import STOPPED, WARM_STEPS, Row
from fleet.errors import order
from fleet.events import JobResult, Outcome, Progress, TaskState
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
        return max(0.0, (at.epochs - at.epochs_done) * epoch_s - (now - row.epoch_at))
    is_known = at.steps > 0 and at.steps_per_s > 0 and (at.epoch <= 0 or at.epochs > 0)
    if not is_known or row.position < WARM_STEPS:
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
        self._take_fleet(event, now)
        self._take_host(event)
        self._take_job(event, now)
        self._take_task(event, now)

    def _take_fleet(self, event: events.Event, now: float) -> None:
        match event:
            case events.Quoted():
                self.fleet = event.fleet
            case events.FleetOpened():
                self.fleet, self.delete_at, self.stop_at = event.fleet, event.delete_at, event.stop_at
                self._keep(self._rows.get(name) or Row(name, name, step_text="connecting") for name in event.hosts)
            case events.FleetResized():
                self.fleet, self.stage = event.fleet, Stage.UP
                self._keep(replace(row, ready=True, step_text="ready") for row in self.rows)
            case events.FleetDown() | events.FleetStopped():
                self.fleet, self.stage, self.down, self.ended_at = event.fleet, Stage.DOWN, True, now
        if isinstance(event, (events.FleetOpened, events.PriceChanged)):
            self.price_usd_h, self.spent_usd, self.priced_at = event.price_usd_h, event.cost_usd, now

    def _take_host(self, event: events.Event) -> None:
        match event:
            case events.ZoneTried():
                self._enter(Stage.UP)
            case events.InstanceChanged(name, step, done):
                self._enter(Stage.DOWN if step.startswith("delet") else Stage.UP)
                self._put(Row(name, name, self._row(name).address, step, done))
            case events.HostConnected(host, address):
                self._update(host, step_text="ready", address=address, lost="")
            case events.BootstrapProgress(host, step, detail, part, whole, done):
                self._enter(Stage.UP)
                self._update(host, step_text=step, detail=detail, part=part, whole=whole, ready=done)
            case events.PushProgress(host, sent, total, files):
                self._transfer(Stage.PUSH, host, "pushed" if sent >= total else "pushing", sent, total, files)
            case events.PullProgress(host, received, total, files, done):
                step = "pulled" if done else "pulling" if total else "listing"
                self._transfer(Stage.PULL, host, step, received, total, files)
            case events.TaskPrepared(slot, endpoint):
                self._update(slot, step_text="prepared", ready=True, address=endpoint)
            case events.ConnectionLost(host, reason):
                self._put(*(replace(row, lost=reason or "no answer") for row in self.rows if row.slot == host))
            case events.ConnectionRestored(host):
                self._put(*(replace(row, lost="") for row in self.rows if row.slot == host))

    def _take_job(self, event: events.Event, now: float) -> None:
        match event:
            case events.JobQueued():
                self.stage, self.result, self.started_at = Stage.QUEUE, None, event.queued_at
                self.job, self.script, self.after = event.job, event.script, event.after
                self._set_members(event.members, "queued")
            case events.JobStarted():
                self.stage, self.result, self.started_at = Stage.JOB, None, event.started_at
                self.job, self.script = event.job, event.script
                self.attempt, self.attempts = event.attempt, event.attempts
                self.retry_at = self.ended_at = 0.0
                self._set_members(event.members, "")
            case events.AttemptEnded() if event.attempt >= self.attempt:
                self.retry_at, self.attempts = now + event.retry_s, max(self.attempts, event.attempts)
            case JobResult():
                self.job, self.attempt = event.job, max(self.attempt, event.attempt)
                self.result, self.ended_at = event, now
                if event.outcome is Outcome.SUCCEEDED:  # tasks that a signal ended then were not needed any more
                    ended = [row for row in self.rows if row.exit and row.exit.signal]
                    self._put(*(replace(row, step_text=STOPPED) for row in ended))

    def _take_task(self, event: events.Event, now: float) -> None:
        match event:
            case TaskState() if self._enter_attempt(event.attempt):
                row = self._row(event.task)
                replaced = [other for other in self.rows if other.slot == event.slot and other is not row]
                if event.slot != row.slot:  # another host has taken it over
                    row = replace(row, slot=event.slot, address=replaced[0].address if replaced else "", lost="")
                self._keep(other for other in self.rows if other not in replaced)
                step_text = "" if event.started else NEVER_STARTED
                self._put(replace(row, phase=event.phase, exit=event.exit, reason=event.reason, step_text=step_text))
            case Progress() if self._enter_attempt(event.attempt):
                row = self._row(event.task)
                if event.epochs_done is not None and event.epochs_done != row.progress.epochs_done:
                    row = replace(row, epoch_at=now, epoch_span_s=now - row.epoch_at if row.epoch_at else 0.0)
                self._put(replace(row, progress=event._replace(metrics={**row.progress.metrics, **event.metrics})))
            case events.TaskAwaited() if event.attempt == self.attempt:
                self._update(event.task, awaited=True)
            case events.Usage():
                gpus = event.gpus
                percent = sum(gpu.percent for gpu in gpus) / len(gpus) if gpus else -1.0
                memory = sum(gpu.memory_mib for gpu in gpus) * 2**20 if gpus else -1
                used = {"cpu_percent": event.cpu_percent, "memory_bytes": event.memory_bytes}
                self._update(event.task, **used, gpu_percent=percent, gpu_memory=memory)

    def _row(self, name: str) -> Row:
        """Return the row of a host or task, a new one if it does not exist."""
        return self._rows.get(name) or Row(name, name)

    def _update(self, name: str, **changes: Any) -> None:
        self._put(replace(self._row(name), **changes))

    def _put(self, *rows: Row) -> None:
        """Put rows in place of those of the same names."""
        self._rows |= {row.name: row for row in rows}

    def _keep(self, rows: Iterable[Row]) -> None:
        """Keep no other rows than these."""
        self._rows = {row.name: row for row in rows}

    def _enter(self, stage: Stage) -> None:
        """Begin a stage; no row is ready in a new one."""
        if self.stage is not stage:
            self.stage = stage
            self._keep(replace(row, ready=False) for row in self.rows)

    def _enter_attempt(self, attempt: int) -> bool:
        """Prepare for an event of an attempt, which may be a new one; return False if it is an earlier one."""
        if attempt > self.attempt:
            self.attempt, self.retry_at = attempt, 0.0
            fresh = {row.name: Row(row.name, row.slot, row.address, lost=row.lost) for row in self.rows if row.phase}
            self._rows |= fresh
        return attempt == self.attempt

    def _transfer(self, stage: Stage, host: str, step: str, part: int, total: int, files: int) -> None:
        self._enter(stage)
        detail = f"{format_size(part)} of {format_size(total)}, {counted(files, 'file')}" if total else ""
        is_done = step in ("pushed", "pulled")
        self._update(host, step_text=step, detail=detail, part=part, whole=total, ready=is_done)

    def _set_members(self, members: Sequence[events.Member], state: str) -> None:
        lost = {row.name: row.lost for row in self.rows}
        tasks = {member.task for member in members}
        self._keep(
            Row(
                member.task or member.slot,
                member.slot,
                member.endpoint or member.address,
                state if member.task else "spare",
                lost=lost.get(member.slot, ""),
            )
            for member in members
            if member.task or member.slot not in tasks
        )
