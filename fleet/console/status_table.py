"""`fleet status` as text, at most as wide as the terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from fleet.console import formatting
from fleet.console.colors import task_color, wants_color
from fleet.console.columns import Column, Line, Span, choose, crop, justify, render, table
from fleet.console.jsonl import JsonSink
from fleet.console.log_lines import clean
from fleet.console.messages import called, exit_words
from fleet.status import FleetStatus, HostStatus, JobStatus, TaskStatus
from fleet.steps import Step
from provision.quantities import counted
from train.agent.files.disk import DISK_LOW
from train.agent.protocol.cluster import endpoint
from train.agent.protocol.records import Outcome, Phase

_INDENT = "  "
_METRICS = 2  # shown of each task
_CAUSE_LINES = 12
_LARGEST = 2  # jobs shown


def render_status(fleets: Sequence[FleetStatus], *, now: float, width: int = 80, color: bool = False) -> str:
    """Return fleets, their hosts, and newest jobs as text; no line is longer than `width`.

    Args:
        fleets: State of the fleets.
        now: Seconds since the epoch.
        width: Columns of the terminal.
        color: True if the stream accepts colors.
    """
    parts = [render((crop(line, width) for line in _fleet(fleet, now, width)), color=color) for fleet in fleets]
    return "\n".join(parts)


def print_status(fleets: Sequence[FleetStatus], out: TextIO, *, json: bool) -> None:
    """Print fleets for people, or as lines of JSON.

    Args:
        fleets: State of the fleets.
        out: Takes everything.
        json: True for lines of JSON.
    """
    if json:
        sink = JsonSink(out.buffer)
        for fleet in fleets:
            sink.emit(fleet)
        return
    width = shutil.get_terminal_size().columns if out.isatty() else 80
    text = render_status(fleets, now=time.time(), width=width, color=wants_color(out, os.environ))
    out.write(text.encode(out.encoding or "utf-8", "replace").decode(out.encoding or "utf-8"))
    out.flush()


def _fleet(fleet: FleetStatus, now: float, width: int) -> list[Line]:
    lines = [_head(fleet, now, width)]
    lines += _indented(choose(_host_columns(fleet.hosts), width - len(_INDENT)), width) if fleet.hosts else []
    lines += [(Span(_INDENT + _why(host), "yellow"),) for host in fleet.hosts if not host.reachable and host.reason]
    lines += _storage(fleet)
    if fleet.job is None:
        return [*lines, (Span(f"{_INDENT}no job yet", "dim"),)]
    lines += [(), _job_line(fleet.job, now, width)]
    if fleet.job.tasks:
        lines += _indented(choose(_task_columns(fleet.job), width - len(_INDENT)), width)
    return [*lines, *_cause(fleet.job, width)]


def _storage(fleet: FleetStatus) -> list[Line]:
    """Describe what the hosts store, in a line or two; nothing if they store no job."""
    disks = sorted((host for host in fleet.hosts if host.disk_free >= 0), key=lambda host: host.disk_free)
    low = bool(disks) and disks[0].disk_free < DISK_LOW
    if not disks or not (fleet.stored or low):
        return []
    free = f"{formatting.size(disks[0].disk_free)} of {formatting.size(disks[0].disk_total)} free on {disks[0].name}"
    jobs = f"{counted(len(fleet.stored), 'job')}, {formatting.size(sum(job.size for job in fleet.stored))}"
    lines: list[Line] = [(Span(f"{_INDENT}stored: {jobs}; {free}", "yellow" if low else ""),)]
    if len(fleet.stored) > 1:
        words = [f"{job.job} {formatting.size(job.size)}" for job in fleet.stored[:_LARGEST]]
        lines.append((Span(f"{_INDENT}largest: {', '.join(words)}", "dim"),))
    waiting = sum(job.pulled in ("no", "partly") for job in fleet.stored)
    if low or waiting:
        step = Step("jobs", "--prune") if low else Step("jobs")
        words = [f"{counted(waiting, 'job')} not pulled"] if waiting else []
        lines.append((Span(f"{_INDENT}{'; '.join([*words, step.text(fleet.name)])}", "dim"),))
    return lines


def _cause(job: JobStatus, width: int) -> list[Line]:
    """Return why the job ended so, as `fleet train` reports it: the verdict, else what the agents report."""
    reasons = [job.verdict.message] if job.verdict else job.reason.splitlines()
    room = max(1, width - len(_INDENT))
    words = [line for reason in reasons for line in textwrap.wrap(clean(reason), room, max_lines=4, placeholder=" …")]
    lines: list[Line] = [(Span(f"{_INDENT}{line}"),) for line in words[:_CAUSE_LINES]]
    warning = textwrap.wrap(f"warning: {job.warning}", room, break_on_hyphens=False) if job.warning else []
    return [*lines, *((Span(f"{_INDENT}{line}", "yellow"),) for line in warning)]


def _why(host: HostStatus) -> str:
    return clean(host.reason if host.name in host.reason else f"{host.name}: {host.reason}")


def _head(fleet: FleetStatus, now: float, width: int) -> Line:
    left = (Span(fleet.name, "bold"), Span(f"  {fleet.provider}, {counted(len(fleet.hosts), 'host')}"))
    right = []
    if fleet.created_at > 0:
        right.append(f"up {formatting.span(now - fleet.created_at)}")
    if fleet.price_usd_h > 0:
        cost = fleet.price_usd_h * max(0.0, now - fleet.created_at) / 3600 if fleet.created_at > 0 else 0.0
        right.append(f"{formatting.money(fleet.price_usd_h)}/h, {formatting.money(cost)} so far")
    if fleet.delete_at > 0:
        right.append(
            f"deleted in {formatting.span(fleet.delete_at - now)}" if fleet.delete_at > now else "deleted now"
        )
    return justify(left, (Span("  ".join(right)),), width)


def _job_line(job: JobStatus, now: float, width: int) -> Line:
    word, style = _job_word(job)
    attempt = f"  attempt {job.attempt}" if job.attempts > 1 or job.attempt > 1 else ""
    attempt += f" of {job.attempts}" if job.attempts > 1 else ""
    left = (Span(f"job {job.id}", "bold"), Span("  "), Span(word, style), Span(f"{attempt}  {clean(job.script)}"))
    elapsed = (job.ended_at or now) - job.started_at
    return justify(left, (Span(formatting.clock(elapsed) if job.started_at > 0 else ""),), width)


def _job_word(job: JobStatus) -> tuple[str, str]:
    if job.outcome is not None:
        tones = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}
        return job.outcome.value, tones.get(job.outcome, "red")
    if job.waits:
        return "waiting to start again", "yellow"
    if any(task.phase is Phase.STOPPING for task in job.tasks):
        return "stopping", "yellow"
    if any(task.phase is Phase.RUNNING and task.alive for task in job.tasks):
        return "running", "green"
    if any(task.phase is Phase.WAITING and task.alive for task in job.tasks):
        return "waiting", ""
    return "unknown", "yellow"


def _indented(columns: list[Column], width: int) -> list[Line]:
    return [(Span(_INDENT), *line) for line in table(columns, width - len(_INDENT))]


def _host_columns(hosts: Sequence[HostStatus]) -> list[Column]:
    states = [Span("ready", "green") if host.reachable else Span("no answer", "yellow") for host in hosts]
    return [
        Column("HOST", tuple(Span(host.name, task_color(host.name)) for host in hosts), limit=24),
        Column("STATE", tuple(states)),
        Column("SSH", tuple(Span(endpoint(host.address, host.port)) for host in hosts), rank=1),
        Column("GPU", tuple(Span(_percent(host.gpu_percent)) for host in hosts), rank=2, right=True),
        Column("CPU", tuple(Span(_percent(host.cpu_percent)) for host in hosts), rank=3, right=True),
        Column("MEM", tuple(Span(_memory(host.memory_bytes)) for host in hosts), rank=4, right=True),
    ]


def _percent(value: float) -> str:
    return f"{value:.0f}%" if value >= 0 else ""


def _memory(value: int) -> str:
    return formatting.size_short(value) if value >= 0 else ""


def _task_columns(job: JobStatus) -> list[Column]:
    tasks = job.tasks
    rates = [formatting.rate(task.steps_per_s) if task.steps_per_s >= 0 else "" for task in tasks]
    return [
        Column(
            "TASK",
            tuple(Span(called(task.task, task.slot), task_color(task.task or task.slot)) for task in tasks),
            limit=24,
        ),
        Column("STATE", tuple(_task_span(task, job) for task in tasks)),
        Column("EPOCH", tuple(Span(formatting.of(task.epoch, task.epochs)) for task in tasks), rank=1, right=True),
        Column("STEP", tuple(Span(formatting.of(task.step, task.steps)) for task in tasks), rank=2, right=True),
        *_metric_columns(tasks),
        Column("STEPS/S", tuple(map(Span, rates)), rank=4, right=True),
    ]


def _task_span(task: TaskStatus, job: JobStatus) -> Span:
    if not task.task:
        return Span("spare") if task.alive else Span("spare", "dim")
    if task.phase is Phase.EXITED:
        word = exit_words(task.exit)
        if job.outcome is Outcome.SUCCEEDED and task.exit is not None and task.exit.signal:
            return Span("stopped")  # it was not needed any more
        return Span(word, "green" if word == "done" else "red")
    if task.phase is None:
        return Span("unknown", "yellow")
    if not task.alive:
        return Span("lost", "red")
    return Span(task.phase.value, "green" if task.phase is Phase.RUNNING else "")


def _metric_columns(tasks: Sequence[TaskStatus]) -> list[Column]:
    names = sorted(
        dict.fromkeys(name for task in tasks for name in task.metrics),
        key=lambda name: (name != "loss", name.startswith("val_")),
    )
    return [
        Column(
            formatting.metric_title(clean(name)),
            tuple(Span(formatting.metric(task.metrics[name]) if name in task.metrics else "") for task in tasks),
            rank=3 + 2 * number,
            right=True,
            limit=12,
        )
        for number, name in enumerate(names[:_METRICS])
    ]
