"""Messages of events: a sentence each, or a few lines for a plan; and errors, which no other module prints."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from fleet import events
from fleet.console.formatting import accepts_color, format_short_span, format_size, paint, read_width, wrap_text
from fleet.console.jsonl import JsonSink
from fleet.console.log_lines import clean, mark_label
from fleet.errors import FleetError, JobNotFinished, fold
from fleet.events import AttemptEnded, Exit, HangInspection, JobResult, Outcome, Phase, TaskState
from provision.quantities import HOURS_PER_MONTH, counted, format_money, format_span
from train.agent.injected.observer import WAITING
from train.agent.protocol.wording import signal_name

_INDENT = 7  # width of the longest label, "error: "


def format_error(error: FleetError, next_lines: Sequence[str] = (), *, color: bool = False, width: int = 0) -> str:
    """Format an error as one to four paragraphs: message, cause, hint, next commands.

    Further lines of a paragraph are indented, so that each stays recognizable. Commands are never wrapped.

    Args:
        error: The error.
        next_lines: Commands to run next.
        color: Whether to use colors.
        width: Columns of the terminal, at which prose is wrapped between words; 0 wraps nothing.
    """
    label, style = ("note", "bold") if isinstance(error, JobNotFinished) else ("error", "bold red")
    parts = [
        (label, error.message, style),
        ("cause", error.cause, "dim"),
        ("hint", error.hint, "dim"),
        ("next", "\n".join(next_lines), "dim"),
    ]
    text, indent = "", " " * _INDENT
    for label, words, style in parts:
        if not words.strip():
            continue
        first, *further = map(clean, words.strip().split("\n"))
        lines = [first, *(further if label == "next" else map(mark_label, further))]
        room = width if width > 2 * _INDENT and label != "next" else 0
        body = "\n".join(wrap_text(line, room, indent, indent) for line in lines)
        text += paint(f"{label}:", style if color else "") + body[len(label) + 1 :] + "\n"
    return text


def print_error(
    error: FleetError, err: TextIO, *, next_lines: Sequence[str] = (), json: JsonSink | None = None
) -> None:
    """Print an error for people and, in JSON mode, for programs.

    Args:
        error: What went wrong.
        err: Takes the text for people, in every mode.
        next_lines: Commands to run next.
        json: Takes the error as the last line of JSON; None if the output is not JSON.
    """
    if json is not None:
        with suppress(BrokenPipeError):  # the reader is gone; the text below and the exit code still report the error
            json.error(error, next_lines)
    err.write(format_error(error, next_lines, color=accepts_color(err, os.environ), width=read_width(err)))
    err.flush()


_SPARE = "none: a spare gets no task until another host is lost"


def describe_event(event: events.Event) -> str:
    """Return the message of an event, without control characters; empty if it has none.

    Output of a task, progress and usage have no sentence. events.PushProgress has one when it is complete.
    """
    describe = _DESCRIPTIONS.get(type(event))
    first, *further = map(clean, describe(event).split("\n")) if describe else [""]
    return "\n".join([first, *map(mark_label, further)])


class Reporter:
    """Messages of events in their order, without repetitions in an attempt, and without the past starts of tasks."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}
        self._steps: set[tuple[str, str]] = set()  # hosts, and their reported steps
        self._attached_to = 0  # newest attempt when a command began to follow a job that had been started before

    def message(self, event: events.Event) -> str:
        """Return the message of an event; empty if it repeats an earlier one."""
        text = describe_event(event)
        if isinstance(event, (events.BootstrapProgress, events.PushProgress)):
            step = event.host, event.step if isinstance(event, events.BootstrapProgress) else text
            text = "" if step in self._steps else text
            self._steps.add(step)
        elif isinstance(event, events.JobStarted) and event.attached:
            self._attached_to = event.attempt
        elif isinstance(event, TaskState) and event.phase in (Phase.WAITING, Phase.RUNNING):
            text = "" if event.attempt <= self._attached_to else text
        elif isinstance(event, AttemptEnded):
            self._reasons[event.attempt] = _plain(event.reason)
        elif isinstance(event, events.JobDiagnosed) and self._reasons.get(event.attempt) == _plain(event.message):
            text = ""
        return text


class Activities:
    """Sentences about what tasks do before their first step: one for each activity and attempt.

    An activity is reported when all tasks have begun it; waiting for the others, when the first task waits.
    """

    def __init__(self) -> None:
        self._tasks: frozenset[str] = frozenset()
        self._attempt = 0
        self._begun: dict[str, set[str]] = {}  # tasks, by activity
        self._reported: set[str] = set()
        self._has_stepped = False

    def message(self, event: events.Event) -> str:
        """Return the sentence of an event; mostly empty."""
        if isinstance(event, events.JobStarted):
            self._tasks = frozenset(member.task for member in event.members if member.task)
        if not isinstance(event, events.Progress) or event.attempt < self._attempt:
            return ""
        if event.attempt > self._attempt:
            self._attempt, self._begun, self._reported, self._has_stepped = event.attempt, {}, set(), False
        self._has_stepped |= event.step > 0 or event.epoch > 1
        activity = event.activity
        if activity is None or self._has_stepped or activity in self._reported:
            return ""
        begun = self._begun.setdefault(activity, set())
        begun.add(event.task)
        if activity != WAITING and not begun >= self._tasks:
            return ""
        self._reported.add(activity)
        return clean(f"{fold(begun)}: {activity}")


def _plain(text: str) -> str:
    """Remove the addresses after names from a message."""
    return re.sub(r" \([^()]*\)", "", text)


def format_plan(plan: events.TaskPlanned, width: int = 0) -> str:
    """Return the command and the environment of a task as lines of up to `width` columns, for ``--dry-run``.

    Lines end at spaces; with 0, each value has one line.
    """
    rows = [("command", plan.command), ("TF_CONFIG", plan.tf_config or _SPARE)]
    rows += [(key, value) for key, value in sorted(plan.env.items()) if key != "TF_CONFIG"]
    wide = max(len(key) for key, _ in rows)
    lines = [wrap_text(clean(value), width, f"  {key:{wide}}  ", " " * (wide + 4)) for key, value in rows]
    return "\n".join([clean(name_task(plan.task or plan.slot, plan.host)), *lines, ""])


def format_inspection(event: HangInspection) -> str:
    """Return the stack and the connections of a task that hangs, each with a heading."""
    kernel = [event.kernel] if event.kernel else []
    parts = (("stack", event.stack.splitlines()), ("connections", event.sockets), ("process", kernel))
    lines = [
        line for part, body in parts if body for line in (f"{event.task}, its {part}:", *(f"  {x}" for x in body))
    ]
    return "".join(clean(line) + "\n" for line in lines)


NEVER_STARTED = "never started"


def name_task(task: str, slot: str) -> str:
    """Return a task with its slot: ``worker-1 on worker-2``, or only one of them if they are the same."""
    return f"{task} on {slot}" if slot not in ("", task) and task else task or slot


def format_exit(end: Exit | None) -> str:
    """Describe how a process ended: ``exit 1``, ``SIGKILL``, ``done`` for exit 0, ``ended`` if unknown."""
    return "done" if end == Exit(0) else _exit(end, "", "exit ")


def _describe_exit(end: Exit | None) -> str:
    return _exit(end, "was killed by ", "exited with code ")


def _exit(end: Exit | None, killed: str, exited: str) -> str:
    if end is None or end == Exit():
        return "ended"
    return f"{exited}{end.code}" if end.signal is None else killed + signal_name(end.signal)


def describe_result(result: JobResult) -> str:
    """Describe how a job ended."""
    reason, first = result.reason, result.first_failed_task
    if result.outcome is Outcome.SUCCEEDED:
        return f"job {result.job} succeeded"
    if result.outcome is Outcome.CANCELLED:
        return f"job {result.job} was cancelled" + _because(reason)
    if result.outcome is Outcome.LOST:
        return f"job {result.job} is lost: {reason or 'no host can report its result'}"
    if first and first not in reason:  # else the reason is a complete sentence
        end = f"{first} {_describe_exit(result.exits.get(first))}"
        reason = f"{end} ({reason})" if reason else end
    return f"job {result.job} failed" + _because(reason)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _job(event: events.JobStarted | events.JobQueued) -> str:
    return f"job {event.job} ({event.name})" if event.name else f"job {event.job}"


def _fleet_opened(event: events.FleetOpened) -> str:
    hosts = counted(len(event.hosts) // event.tasks_per_host, "host")
    each = f", {event.tasks_per_host} tasks each" if event.tasks_per_host > 1 else ""
    price = f", {format_money(event.price_usd_h)} an hour" if event.price_usd_h > 0 else ""
    at, verb = (event.stop_at, "stops") if event.stop_at > 0 else (event.delete_at, "deleted")
    end = time.strftime(f", {verb} automatically on %Y-%m-%d at %H:%M", time.localtime(at)) if at > 0 else ""
    return f"fleet {event.fleet}: {hosts}{each} ({event.provider}){price}{end}"


def _price_changed(event: events.PriceChanged) -> str:
    price, cost = format_money(event.price_usd_h), format_money(event.cost_usd)
    return f"fleet {event.fleet}: {price} an hour from now on, {cost} so far"


def _push_progress(event: events.PushProgress) -> str:
    if event.sent < event.total:
        return ""
    pushed = f"{counted(event.files, 'file')} pushed, {format_size(event.total)}"
    return f"{event.host}: {pushed if event.total else 'up to date'}"


def _task_prepared(event: events.TaskPrepared) -> str:
    gpus = {name: event.gpus.count(name) for name in event.gpus}
    details = [f"{name} {version}" for name, version in event.versions.items()]
    details += [f"{count} of {name}" if count > 1 else name for name, count in gpus.items()]
    return f"{event.slot}: prepared at {event.endpoint}" + (f" ({', '.join(details)})" if details else "")


def _job_started(event: events.JobStarted) -> str:
    tasks = fold(member.task for member in event.members if member.task)
    names = fold(member.slot for member in event.members if not member.task)
    attached = f"attached to {_job(event)}" if event.attached else f"{_job(event)} started"
    head = f"{_job(event)} has ended" if event.ended else attached
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    spares = f", spare: {names}" if names else ""
    most = f", at most {counted(event.max_workers, 'worker')}" if event.max_workers else ""
    return f"{head}: {event.script} on {tasks}{spares}{most}{attempt}"


def _job_queued(event: events.JobQueued) -> str:
    tasks = fold(member.task for member in event.members if member.task)
    verb = "waits for" if event.attached else "queued after"
    return f"{_job(event)} {verb} job {event.after}: {event.script} on {tasks}"


def _connection_lost(event: events.ConnectionLost) -> str:
    then = f"retrying in {format_span(max(1, event.retry_s))}" if event.retry_s > 0 else "giving up"
    return f"{event.host}: connection lost ({event.reason}); {then}"


def _fleet_down(event: events.FleetDown) -> str:
    if event.external:
        left = f"files remain on {event.left}" if event.left else "no files remain on them"
        return f"fleet {event.fleet}: {counted(len(event.deleted), 'host')} released; {left}"
    noun = "instance" if event.rented else "host"
    left = f"; {counted(event.left, noun)} left" if event.left else ", 0 left"
    limit = f" of at most {format_money(event.max_cost_usd)}" if event.max_cost_usd else ""
    cost = f", cost {format_money(event.cost_usd)}{limit}" if event.cost_usd > 0 else ""
    deleted = f"{counted(len(event.deleted), noun)} deleted{left}"
    return f"fleet {event.fleet}: {deleted}, uptime {format_span(event.uptime_s)}{cost}"


def _image_baked(event: events.ImageBaked) -> str:
    price = f"{event.size_gb:.1f} GB, {format_money(event.usd_month)} a month"
    return f"image {event.image} {'is ready' if event.created else 'exists already'}: {price}"


def _fleet_stopped(event: events.FleetStopped) -> str:
    price = event.price_usd_h
    disks = f"{format_money(price * HOURS_PER_MONTH)} a month" if price else "an unknown price"
    kept = "its disk is" if len(event.stopped) == 1 else "their disks are"
    cost = f", {format_money(event.cost_usd)} so far" if event.cost_usd > 0 else ""
    text = f"fleet {event.fleet}: {counted(len(event.stopped), 'instance')} stopped; {kept} kept for {disks}{cost}"
    if not (event.max_cost_usd and price):
        return text
    left_s = 3600 * max(0.0, event.max_cost_usd - event.cost_usd) / price
    limit = f"--max-cost {format_money(event.max_cost_usd)} pays for {format_span(left_s)} of them"
    return f"{text}; {limit}, but does not delete them"


def _fleet_resized(event: events.FleetResized) -> str:
    cost = f", cost {format_money(event.cost_usd)}" if event.cost_usd > 0 else ""
    verb = "released" if event.external else "deleted"
    changes = [f"{fold(event.added)} added"] if event.added else []
    changes += [f"{fold(event.released)} {verb}{cost}"] if event.released else []
    price = f", {format_money(event.price_usd_h)}/h" if event.price_usd_h else ""
    return f"fleet {event.fleet}: {'; '.join(changes)}; it has {counted(event.workers, 'worker')} now{price}"


_AWAITED_CAUSES = {"input": "input", "python": "outside of tf.functions"}
_AWAITED_HINTS = {
    "input": "to speed up its input: map(..., num_parallel_calls=tf.data.AUTOTUNE), cache(), prefetch()",
    "python": "to speed it up: do less in callbacks and between the steps",
}


def describe_awaited(event: events.TaskAwaited) -> str:
    """Return ``the others wait for worker-1 (input: 210 ms of 230 ms per step)``."""
    cause = _AWAITED_CAUSES.get(event.cause, event.cause)
    times = f"{1000 * event.own_s:,.0f} ms of {1000 * event.step_s:,.0f} ms per step"
    return f"the others wait for {event.task} ({cause}: {times})"


def _task_awaited(event: events.TaskAwaited) -> str:
    return "\n".join(filter(None, (describe_awaited(event), _AWAITED_HINTS.get(event.cause))))


def _task_state(event: TaskState) -> str:
    words = event.phase.value
    if event.phase is Phase.EXITED:
        words = _describe_exit(event.exit) if event.started else NEVER_STARTED
    reason = event.reason
    if event.phase is Phase.RUNNING and event.cold is not None:
        reason = f"a new process: {event.cold}" if event.cold else "forked from a process with its imports"
    return f"{name_task(event.task, event.slot)}: {words}" + (f" ({reason})" if reason else "")


def _attempt_ended(event: AttemptEnded) -> str:
    reason, first = "; ".join(event.reason.splitlines()), event.first_failed_task
    if not reason and first:
        reason = f"{first} {_describe_exit(event.exits.get(first))}"
    is_growth = event.reason_kind == "growth"
    when = f"in {format_short_span(event.retry_s)}" if event.retry_s > 0 and not is_growth else "at once"
    if event.attempts > 0 and not is_growth:
        when += f" (of at most {event.attempts})"
    if event.preempted and not is_growth:
        when = "when all hosts are back"
    verb = "ended" if is_growth or event.preempted else "failed"
    return f"attempt {event.attempt} {verb}{_because(reason)}; attempt {event.attempt + 1} starts {when}"


def _hang_inspection(event: HangInspection) -> str:
    return f"no progress: {event.activity}" + (f" (state {event.state})" if event.state else "")


def _job_diagnosed(event: events.JobDiagnosed) -> str:
    if event.final or event.kind == "unknown":  # the error at the end of the command reports that of the job
        return ""
    return f"attempt {event.attempt}: {event.message}"


def _jobs_deleted(event: events.JobsDeleted) -> str:
    kept = "".join(f"\njob {job} was not deleted: {why}" for job, why in event.kept.items())
    return f"{counted(len(event.jobs), 'job')} deleted, {format_size(event.freed)} freed on the hosts" + kept


def _results_pulled(event: events.ResultsPulled) -> str:
    present = event.files - event.received_files
    if not event.files and not event.complete:  # an error follows
        return ""
    equal = f" ({event.equal:,} more are equal to those of another task)" if event.equal else ""
    files = f"{counted(event.files, 'file')}{equal}, {format_size(event.size)}"
    if not event.received_files:
        return f"{files}: already in {event.directory}"
    return files + (f", {present:,} of them there before" if present else "") + f", in {event.directory}"


def _tensorboard_started(event: events.TensorboardStarted) -> str:
    opened = "opened in the browser; " if event.opened else ""
    return f"TensorBoard of job {event.job}: {event.url} ({opened}Ctrl-C ends it)"


def _report_written(event: events.ReportWritten) -> str:
    page = f"report of job {event.job}: {event.page} ({format_size(event.size)})"
    return page + (f"\ncapsule: {event.capsule} ({format_size(event.capsule_size or 0)})" if event.capsule else "")


def _ssh_config_changed(event: events.SshConfigChanged) -> str:
    if not event.installed:
        return f"{event.file}: the line was removed" if event.changed else f"{event.file} does not have the line"
    done = f"added to {event.file}" if event.changed else f"{event.file} already has the line"
    return f"{done}: {event.line}\nssh and editors reach {fold(event.hosts) or 'the hosts of new fleets'}"


def _command_result(event: events.CommandResult) -> str:
    by_code: dict[int, list[str]] = {}
    for result in event.hosts:
        if result.code:
            by_code.setdefault(result.code, []).append(result.host)
    return "\n".join(f"{fold(hosts)}: exit code {code}" for code, hosts in sorted(by_code.items()))


def _files_pushed(event: events.FilesPushed) -> str:
    hosts: dict[tuple[str | None, int], list[str]] = {}
    for pushed in event.hosts:
        if pushed.written is not None:
            hosts.setdefault((pushed.directory, pushed.written), []).append(pushed.host)
    files = f"{counted(event.files, 'file')}, {format_size(event.size)}"
    unchanged = {written: f" ({event.files - written:,} unchanged)" for _, written in hosts if written < event.files}
    return "\n".join(
        f"{fold(names)}: {files}, in {directory}{unchanged.get(written, '')}"
        for (directory, written), names in hosts.items()
    )


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    events.Note: lambda event: f"warning: {event.text}" if event.level is events.Level.WARNING else event.text,
    events.FleetOpened: _fleet_opened,
    events.PriceChanged: _price_changed,
    events.ZoneTried: lambda event: f"{event.zone}: {event.step}",
    events.InstanceChanged: lambda event: f"{event.instance}: {event.step}",
    events.BootstrapProgress: lambda event: (
        f"{event.host}: {event.step}" + (f" ({event.detail})" if event.detail else "")
    ),
    events.PushProgress: _push_progress,
    events.TaskPrepared: _task_prepared,
    events.JobStarted: _job_started,
    events.JobQueued: _job_queued,
    events.ConnectionLost: _connection_lost,
    events.ConnectionRestored: lambda event: f"{event.host}: connected again",
    events.FleetResized: _fleet_resized,
    events.FleetDown: _fleet_down,
    events.ImageBaked: _image_baked,
    events.FleetStopped: _fleet_stopped,
    events.OrphansDeleted: lambda event: f"{counted(event.deleted, 'resource')} deleted, {len(event.left)} left",
    events.JobsDeleted: _jobs_deleted,
    events.ResultsPulled: _results_pulled,
    events.TensorboardStarted: _tensorboard_started,
    events.ReportWritten: _report_written,
    events.SshConfigChanged: _ssh_config_changed,
    events.CommandResult: _command_result,
    events.FilesPushed: _files_pushed,
    TaskState: _task_state,
    AttemptEnded: _attempt_ended,
    HangInspection: _hang_inspection,
    events.TaskAwaited: _task_awaited,
    events.JobDiagnosed: _job_diagnosed,
    JobResult: describe_result,
}
