"""Events in words: one sentence each, or a few lines for a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fleet.console.figures import counted, fold, money, size, span
from fleet.console.logtext import clean
from fleet.events import (
    ConnectionLost,
    ConnectionRestored,
    Event,
    FleetDown,
    FleetOpened,
    InstanceChanged,
    JobStarted,
    Level,
    Note,
    PushProgress,
    TaskPlanned,
    TaskPrepared,
)
from train.agent.records import Exit, JobResult, Outcome, Phase, TaskState


def sentence(event: Event) -> str:
    """What a reader should be told of `event`, without control characters; empty where nothing.

    Output of a task, progress and usage have no sentence. PushProgress has one when it is complete.
    """
    words = _SENTENCES.get(type(event))
    return "\n".join(clean(line) for line in words(event).split("\n")) if words else ""


def plan_text(plan: TaskPlanned) -> str:
    """What a task will get, for ``--dry-run``: a few lines, the last one ended, too."""
    rows = [("command", plan.command), ("TF_CONFIG", plan.tf_config)]
    rows += [(key, value) for key, value in sorted(plan.env.items()) if key != "TF_CONFIG"]
    wide = max(len(key) for key, _ in rows)
    where = f" on {plan.host}" if plan.host != plan.task else ""
    lines = [plan.task + where, *(f"  {key:{wide}}  {value}" for key, value in rows)]
    return "".join(clean(line) + "\n" for line in lines)


def exit_words(end: Exit | None) -> str:
    """How a process ended: ``exit 1``, ``SIGKILL``, ``ended`` where nobody knows; ``done`` for exit 0."""
    if end is None or (end.code is None and end.signal is None):
        return "ended"
    if end.signal is not None:
        return signal_name(end.signal)
    return f"exit {end.code}" if end.code else "done"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for what this system does not know."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def result_sentence(result: JobResult) -> str:
    """How a job ended."""
    if result.outcome is Outcome.SUCCEEDED:
        return f"job {result.job} succeeded"
    if result.outcome is Outcome.CANCELLED:
        return f"job {result.job} was cancelled" + _because(result.reason)
    if result.outcome is Outcome.LOST:
        return f"job {result.job} is lost" + (_because(result.reason) or ": no host is left that could tell")
    end = result.exits.get(result.first_task)
    first = f"{result.first_task} {_ended(end)}" if result.first_task else ""
    if not first or result.first_task in result.reason:  # the reason is a sentence of its own
        return f"job {result.job} failed" + (_because(result.reason) or _because(first))
    return f"job {result.job} failed: {first}" + (f" ({result.reason})" if result.reason else "")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _ended(end: Exit | None) -> str:
    if end is None or (end.code is None and end.signal is None):
        return "ended"
    if end.signal is not None:
        return f"was ended by {signal_name(end.signal)}"
    return f"exited with code {end.code}"


def _note(event: Note) -> str:
    return f"warning: {event.text}" if event.level is Level.WARNING else event.text


def _fleet_opened(event: FleetOpened) -> str:
    text = f"fleet {event.fleet}: {counted(len(event.hosts), 'host')} ({event.provider})"
    if event.price_usd_h > 0:
        text += f", {money(event.price_usd_h)} an hour"
    if event.delete_at > 0:
        text += time.strftime(", deletes itself on %Y-%m-%d at %H:%M", time.localtime(event.delete_at))
    return text


def _push_progress(event: PushProgress) -> str:
    if event.sent < event.total:
        return ""
    if event.total == 0:
        return f"{event.host}: everything is there already"
    return f"{event.host}: {counted(event.files, 'file')} pushed, {size(event.total)}"


def _task_prepared(event: TaskPrepared) -> str:
    found = [f"{name} {version}" for name, version in event.versions.items()]
    if event.gpus:
        found.append(_gpus(event.gpus))
    return f"{event.task}: prepared at {event.endpoint}" + (f" ({', '.join(found)})" if found else "")


def _gpus(names: tuple[str, ...]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{count} of {name}" if count > 1 else name for name, count in kinds.items())


def _job_started(event: JobStarted) -> str:
    tasks = fold(member.task for member in event.members)
    verb = "runs" if event.attached else "started"
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"job {event.job} {verb}: {event.script} on {tasks}{attempt}"


def _connection_lost(event: ConnectionLost) -> str:
    return f"{event.host}: connection lost ({event.reason}); trying again in {span(max(1, event.retry_s))}"


def _fleet_down(event: FleetDown) -> str:
    left = f"; {counted(event.left, 'instance')} left" if event.left else ", 0 left"
    cost = f", cost {money(event.cost_usd)}" if event.cost_usd > 0 else ""
    deleted = f"{counted(len(event.deleted), 'instance')} deleted{left}"
    return f"fleet {event.fleet}: {deleted}; lived {span(event.lived_s)}{cost}"


def _task_state(event: TaskState) -> str:
    if event.phase is Phase.EXITED:
        return f"{event.task}: {_ended(event.exit)}" + (f" ({event.reason})" if event.reason else "")
    return f"{event.task}: {event.phase.value}" + (f" ({event.reason})" if event.reason else "")


def _instance_changed(event: InstanceChanged) -> str:
    return f"{event.instance}: {event.step}"


def _connection_restored(event: ConnectionRestored) -> str:
    return f"{event.host}: connected again"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    Note: _note,
    FleetOpened: _fleet_opened,
    InstanceChanged: _instance_changed,
    PushProgress: _push_progress,
    TaskPrepared: _task_prepared,
    JobStarted: _job_started,
    ConnectionLost: _connection_lost,
    ConnectionRestored: _connection_restored,
    FleetDown: _fleet_down,
    TaskState: _task_state,
    JobResult: result_sentence,
}
