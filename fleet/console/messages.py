"""Messages of events: a sentence each, or a few lines for a plan; and errors, which no other module prints."""

from __future__ import annotations

import os
import re
import textwrap
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
    kind = ("note", "bold") if isinstance(error, JobNotFinished) else ("error", "bold red")
    parts = [
        (kind[0], error.message, kind[1]),
        ("cause", error.cause, "dim"),
        ("hint", error.hint, "dim"),
        ("next", "\n".join(next_lines), "dim"),
    ]
    text = ""
    for label, words, style in parts:
        lines = [clean(line) for line in words.strip().split("\n")]
        if label != "next":
            lines = [lines[0], *(mark_label(line) for line in lines[1:])]
        if lines == [""]:
            continue
        if width > 2 * _INDENT and label != "next":
            lines = [part for line in lines for part in _wrap(line, width - _INDENT)]
        head = paint(f"{label}:", style if color else "") + " " * (_INDENT - len(label) - 1)
        indent = "\n" + " " * _INDENT
        text += f"{head}{indent.join(lines)}\n"
    return text


def _wrap(line: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        line, width, expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    return wrapped or [line]


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
    words = _DESCRIPTIONS.get(type(event))
    if words is None:
        return ""
    first, *further = (clean(line) for line in words(event).split("\n"))
    return "\n".join([first, *(mark_label(line) for line in further)])


class Reporter:
    """Messages of events in their order, without repetitions in an attempt, and without the past starts of tasks."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}
        self._steps: set[tuple[str, str]] = set()  # hosts, and their reported steps
        self._attached_to = 0  # newest attempt when a command began to follow a job that had been started before

    def message(self, event: events.Event) -> str:
        """Return the message of an event; empty if it repeats an earlier one."""
        if isinstance(event, (events.BootstrapProgress, events.PushProgress)):
            step = event.host, describe_event(event) if isinstance(event, events.PushProgress) else event.step
            if step in self._steps:
                return ""
            self._steps.add(step)
        elif isinstance(event, events.JobStarted) and event.attached:
            self._attached_to = event.attempt
        elif isinstance(event, TaskState) and event.phase in (Phase.WAITING, Phase.RUNNING):
            if event.attempt <= self._attached_to:
                return ""
        elif isinstance(event, AttemptEnded):
            self._reasons[event.attempt] = _plain(event.reason)
        elif isinstance(event, events.JobDiagnosed) and not event.final:
            reason = self._reasons.get(event.attempt, "")
            if reason and _plain(event.message) == reason:
                return ""
        return describe_event(event)


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
        self._has_stepped = self._has_stepped or event.step > 0 or event.epoch > 1
        activity = event.activity
        if activity is None or self._has_stepped or activity in self._reported:
            return ""
        begun = self._begun.setdefault(activity, set())
        begun.add(event.task)
        if not (begun >= self._tasks or activity == WAITING):
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
    indent = " " * (wide + 4)
    lines = (wrap_text(clean(value), width, f"  {key:{wide}}  ", indent) for key, value in rows)
    return "".join(line + "\n" for line in (clean(name_task(plan.task or plan.slot, plan.host)), *lines))


def format_inspection(event: HangInspection) -> str:
    """Return the stack and the connections of a task that hangs, each with a heading."""
    lines = []
    parts = (
        ("stack", event.stack.splitlines()),
        ("connections", event.sockets),
        ("process", [event.kernel] if event.kernel else []),
    )
    for heading, body in parts:
        if body:
            lines += [f"{event.task}, its {heading}:", *(f"  {line}" for line in body)]
    return "".join(clean(line) + "\n" for line in lines)


NEVER_STARTED = "never started"


def name_task(task: str, slot: str) -> str:
    """Return a task with its slot: ``worker-1 on worker-2``, or only one of them if they are the same."""
    return f"{task} on {slot}" if slot not in ("", task) and task else task or slot


def format_exit(end: Exit | None) -> str:
    """Describe how a process ended: ``exit 1``, ``SIGKILL``, ``done`` for exit 0, ``ended`` if unknown."""
    if end is None or (end.code is None and end.signal is None):
        return "ended"
    if end.signal is not None:
        return signal_name(end.signal)
    return f"exit {end.code}" if end.code else "done"


def describe_result(result: JobResult) -> str:
    """Describe how a job ended."""
    if result.outcome is Outcome.SUCCEEDED:
        return f"job {result.job} succeeded"
    if result.outcome is Outcome.CANCELLED:
        return f"job {result.job} was cancelled" + _because(result.reason)
    if result.outcome is Outcome.LOST:
        return f"job {result.job} is lost" + (_because(result.reason) or ": no host can report its result")
    end = result.exits.get(result.first_failed_task)
    first = f"{result.first_failed_task} {_describe_exit(end)}" if result.first_failed_task else ""
    if not first or result.first_failed_task in result.reason:  # the reason is a complete sentence
        return f"job {result.job} failed" + (_because(result.reason) or _because(first))
    return f"job {result.job} failed: {first}" + (f" ({result.reason})" if result.reason else "")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _describe_exit(end: Exit | None) -> str:
    if end is None or (end.code is None and end.signal is None):
        return "ended"
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}"
    return f"exited with code {end.code}"


def _fleet_opened(event: events.FleetOpened) -> str:
    hosts = counted(len(event.hosts) // event.tasks_per_host, "host")
    each = f", {event.tasks_per_host} tasks each" if event.tasks_per_host > 1 else ""
    text = f"fleet {event.fleet}: {hosts}{each} ({event.provider})"
    if event.price_usd_h > 0:
        text += f", {format_money(event.price_usd_h)} an hour"
    if event.stop_at > 0:
        text += time.strftime(", stops automatically on %Y-%m-%d at %H:%M", time.localtime(event.stop_at))
    elif event.delete_at > 0:
        text += time.strftime(", deleted automatically on %Y-%m-%d at %H:%M", time.localtime(event.delete_at))
    return text


def _price_changed(event: events.PriceChanged) -> str:
    price, cost = format_money(event.price_usd_h), format_money(event.cost_usd)
    return f"fleet {event.fleet}: {price} an hour from now on, {cost} so far"


def _push_progress(event: events.PushProgress) -> str:
    if event.sent < event.total:
        return ""
    if event.total == 0:
        return f"{event.host}: up to date"
    return f"{event.host}: {counted(event.files, 'file')} pushed, {format_size(event.total)}"


def _task_prepared(event: events.TaskPrepared) -> str:
    details = [f"{name} {version}" for name, version in event.versions.items()]
    if event.gpus:
        details.append(_gpus(event.gpus))
    return f"{event.slot}: prepared at {event.endpoint}" + (f" ({', '.join(details)})" if details else "")


def _gpus(names: tuple[str, ...]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{count} of {name}" if count > 1 else name for name, count in kinds.items())


def _job_started(event: events.JobStarted) -> str:
    tasks = fold(member.task for member in event.members if member.task)
    names = fold(member.slot for member in event.members if not member.task)
    job = f"job {event.job} ({event.name})" if event.name else f"job {event.job}"
    attached = f"attached to {job}" if event.attached else f"{job} started"
    head = f"{job} has ended" if event.ended else attached
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    spares = f", spare: {names}" if names else ""
    most = f", at most {counted(event.max_workers, 'worker')}" if event.max_workers else ""
    return f"{head}: {event.script} on {tasks}{spares}{most}{attempt}"


def _job_queued(event: events.JobQueued) -> str:
    tasks = fold(member.task for member in event.members if member.task)
    job = f"job {event.job} ({event.name})" if event.name else f"job {event.job}"
    verb = "waits for" if event.attached else "queued after"
    return f"{job} {verb} job {event.after}: {event.script} on {tasks}"


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
    disks = (
        f"{format_money(event.price_usd_h * HOURS_PER_MONTH)} a month" if event.price_usd_h else "an unknown price"
    )
    kept = "its disk is" if len(event.stopped) == 1 else "their disks are"
    text = f"fleet {event.fleet}: {counted(len(event.stopped), 'instance')} stopped; {kept} kept for {disks}"
    if event.cost_usd > 0:
        text += f", {format_money(event.cost_usd)} so far"
    if event.max_cost_usd and event.price_usd_h:
        left_s = 3600 * max(0.0, event.max_cost_usd - event.cost_usd) / event.price_usd_h
        limit = f"--max-cost {format_money(event.max_cost_usd)}"
        text += f"; {limit} pays for {format_span(left_s)} of them, but does not delete them"
    return text


def _fleet_resized(event: events.FleetResized) -> str:
    changes = []
    if event.added:
        changes.append(f"{fold(event.added)} added")
    if event.released:
        cost = f", cost {format_money(event.cost_usd)}" if event.cost_usd > 0 else ""
        changes.append(f"{fold(event.released)} {'released' if event.external else 'deleted'}{cost}")
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
    times = f"{_milliseconds(event.own_s)} of {_milliseconds(event.step_s)} per step"
    return f"the others wait for {event.task} ({cause}: {times})"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def _task_awaited(event: events.TaskAwaited) -> str:
    hint = _AWAITED_HINTS.get(event.cause)
    return describe_awaited(event) + (f"\n{hint}" if hint else "")


def _task_state(event: TaskState) -> str:
    words = event.phase.value
    if event.phase is Phase.EXITED:
        words = _describe_exit(event.exit) if event.started else NEVER_STARTED
    reason = event.reason
    if event.phase is Phase.RUNNING and event.cold is not None:
        reason = f"a new process: {event.cold}" if event.cold else "forked from a process with its imports"
    return f"{name_task(event.task, event.slot)}: {words}" + (f" ({reason})" if reason else "")


def _attempt_ended(event: AttemptEnded) -> str:
    reason = "; ".join(event.reason.splitlines())
    if not reason and event.first_failed_task:
        reason = f"{event.first_failed_task} {_describe_exit(event.exits.get(event.first_failed_task))}"
    if event.reason_kind == "growth":
        return f"attempt {event.attempt} ended{_because(reason)}; attempt {event.attempt + 1} starts at once"
    if event.preempted:
        then = f"attempt {event.attempt + 1} starts when all hosts are back"
        return f"attempt {event.attempt} ended{_because(reason)}; {then}"
    wait = f"in {format_short_span(event.retry_s)}" if event.retry_s > 0 else "at once"
    most = f" (of at most {event.attempts})" if event.attempts > 0 else ""
    return f"attempt {event.attempt} failed{_because(reason)}; attempt {event.attempt + 1} starts {wait}{most}"


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
    before = f", {present:,} of them there before" if present and event.received_files else ""
    if not event.files and not event.complete:  # an error follows
        return ""
    equal = f" ({event.equal:,} more are equal to those of another task)" if event.equal else ""
    files = f"{counted(event.files, 'file')}{equal}, {format_size(event.size)}"
    return (
        f"{files}{before}, in {event.directory}" if event.received_files else f"{files}: already in {event.directory}"
    )


def _tensorboard_started(event: events.TensorboardStarted) -> str:
    opened = "opened in the browser; " if event.opened else ""
    return f"TensorBoard of job {event.job}: {event.url} ({opened}Ctrl-C ends it)"


def _report_written(event: events.ReportWritten) -> str:
    page = f"report of job {event.job}: {event.page} ({format_size(event.size)})"
    if event.capsule is None or event.capsule_size is None:
        return page
    return f"{page}\ncapsule: {event.capsule} ({format_size(event.capsule_size)})"


def _ssh_config_changed(event: events.SshConfigChanged) -> str:
    if not event.installed:
        return f"{event.file}: the line was removed" if event.changed else f"{event.file} does not have the line"
    done = f"added to {event.file}" if event.changed else f"{event.file} already has the line"
    return f"{done}: {event.line}\n" + (
        f"ssh and editors reach {fold(event.hosts)}"
        if event.hosts
        else "ssh and editors reach the hosts of new fleets"
    )


def _command_result(event: events.CommandResult) -> str:
    by_code: dict[int, list[str]] = {}
    for result in event.hosts:
        if result.code:
            by_code.setdefault(result.code, []).append(result.host)
    return "\n".join(f"{fold(hosts)}: exit code {code}" for code, hosts in sorted(by_code.items()))


def _files_pushed(event: events.FilesPushed) -> str:
    hosts: dict[tuple[str, int], list[str]] = {}
    for pushed in event.hosts:
        if pushed.directory is not None and pushed.written is not None:
            hosts.setdefault((pushed.directory, pushed.written), []).append(pushed.host)
    files = f"{counted(event.files, 'file')}, {format_size(event.size)}"
    return "\n".join(
        f"{fold(names)}: {files}, in {directory}" + _unchanged(event.files - written, written)
        for (directory, written), names in hosts.items()
    )


def _unchanged(unchanged: int, written: int) -> str:
    if unchanged <= 0:
        return ""
    return f" ({unchanged:,} unchanged)" if written else " (unchanged)"


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
