"""`fleet status` as text, at most as wide as the terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from fleet.console.colors import accepts_color
from fleet.console.columns import Line, Span, arrange_table, choose, crop, justify, render
from fleet.console.formatting import format_clock, format_money, format_size, format_span
from fleet.console.jsonl import JsonSink
from fleet.console.log_lines import clean
from fleet.console.rows import STOPPED, Row, make_columns
from fleet.events import Outcome, Phase, Progress
from fleet.status import FleetStatus, HostStatus, JobStatus, TaskStatus
from fleet.steps import Step
from provision.quantities import counted
from train.agent.files.disk import DISK_LOW
from train.agent.protocol.wording import endpoint

_INDENT = "  "
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
    text = render_status(fleets, now=time.time(), width=width, color=accepts_color(out, os.environ))
    out.write(text.encode(out.encoding or "utf-8", "replace").decode(out.encoding or "utf-8"))
    out.flush()


def _fleet(fleet: FleetStatus, now: float, width: int) -> list[Line]:
    lines = [_header(fleet, now, width)]
    lines += _table([_host_row(host) for host in fleet.hosts], "HOST", width)
    lines += [
        (Span(_INDENT + _describe_failure(host), "yellow"),)
        for host in fleet.hosts
        if not host.reachable and host.reason
    ]
    lines += _storage(fleet, now)
    if fleet.job is None:
        return [*lines, (Span(f"{_INDENT}no job yet", "dim"),)]
    lines += [(), _job_line(fleet.job, now, width)]
    lines += _table([_task_row(task, fleet.job) for task in fleet.job.tasks], "TASK", width)
    return [*lines, *_cause(fleet.job, width)]


def _storage(fleet: FleetStatus, now: float) -> list[Line]:
    """Describe what the hosts store, in a line or two; nothing if they store no job."""
    disks = sorted((host for host in fleet.hosts if host.disk_free >= 0), key=lambda host: host.disk_free)
    low = bool(disks) and disks[0].disk_free < DISK_LOW
    if not disks or not (fleet.stored or low):
        return []
    free = f"{format_size(disks[0].disk_free)} of {format_size(disks[0].disk_total)} free on {disks[0].name}"
    jobs = f"{counted(len(fleet.stored), 'job')}, {format_size(sum(job.size for job in fleet.stored))}"
    lines: list[Line] = [(Span(f"{_INDENT}stored: {jobs}; {free}", "yellow" if low else ""),)]
    if len(fleet.stored) > 1:
        words = [f"{job.job} {format_size(job.size)}" for job in fleet.stored[:_LARGEST]]
        lines.append((Span(f"{_INDENT}largest: {', '.join(words)}", "dim"),))
    waiting = sum(job.pulled in ("no", "partly") for job in fleet.stored)
    if low or waiting:
        is_due = waiting > 0 and fleet.delete_at > 0
        step = Step("jobs", "--prune") if low else Step("pull") if is_due else Step("jobs")
        words = [f"{counted(waiting, 'job')} not pulled"] if waiting else []
        if is_due:
            words.append(f"deleted with the hosts in {format_span(max(0.0, fleet.delete_at - now))}")
        style = "yellow" if is_due else "dim"
        lines.append((Span(f"{_INDENT}{'; '.join([*words, step.text(fleet.name)])}", style),))
    return lines


def _cause(job: JobStatus, width: int) -> list[Line]:
    """Return why the job ended so, as `fleet train` reports it: the verdict, else what the agents report."""
    reasons = [job.verdict.message] if job.verdict else job.result.reason.splitlines() if job.result else []
    room = max(1, width - len(_INDENT))
    words = [line for reason in reasons for line in textwrap.wrap(clean(reason), room, max_lines=4, placeholder=" …")]
    lines: list[Line] = [(Span(f"{_INDENT}{line}"),) for line in words[:_CAUSE_LINES]]
    warning = textwrap.wrap(f"warning: {job.warning}", room, break_on_hyphens=False) if job.warning else []
    return [*lines, *((Span(f"{_INDENT}{line}", "yellow"),) for line in warning)]


def _describe_failure(host: HostStatus) -> str:
    return clean(host.reason if host.name in host.reason else f"{host.name}: {host.reason}")


def _header(fleet: FleetStatus, now: float, width: int) -> Line:
    left = (Span(fleet.name, "bold"), Span(f"  {fleet.provider}, {counted(len(fleet.hosts), 'host')}"))
    right = []
    if fleet.created_at > 0:
        right.append(f"up {format_span(now - fleet.created_at)}")
    if fleet.price_usd_h > 0:
        cost = fleet.price_usd_h * max(0.0, now - fleet.created_at) / 3600 if fleet.created_at > 0 else 0.0
        right.append(f"{format_money(fleet.price_usd_h)}/h, {format_money(cost)} so far")
    if fleet.delete_at > 0:
        right.append(f"deleted in {format_span(fleet.delete_at - now)}" if fleet.delete_at > now else "deleted now")
    return justify(left, (Span("  ".join(right)),), width)


def _job_line(job: JobStatus, now: float, width: int) -> Line:
    word, style = _job_word(job)
    attempt = f"  attempt {job.attempt}" if job.attempts > 1 or job.attempt > 1 else ""
    attempt += f" of {job.attempts}" if job.attempts > 1 else ""
    title = clean(f"{job.name}: {job.script}" if job.name else job.script)
    left = (Span(f"job {job.id}", "bold"), Span("  "), Span(word, style), Span(f"{attempt}  {title}"))
    elapsed = (job.result.at if job.result else now) - job.started_at
    return justify(left, (Span(format_clock(elapsed) if job.started_at > 0 else ""),), width)


def _job_word(job: JobStatus) -> tuple[str, str]:
    if job.result is not None:
        tones = {Outcome.SUCCEEDED: "green", Outcome.CANCELLED: "yellow"}
        return job.result.outcome.value, tones.get(job.result.outcome, "red")
    if job.waits:
        return "waiting to start again", "yellow"
    if any(task.phase is Phase.STOPPING for task in job.tasks):
        return "stopping", "yellow"
    if any(task.phase is Phase.RUNNING and task.alive for task in job.tasks):
        return "running", "green"
    if any(task.phase is Phase.WAITING and task.alive for task in job.tasks):
        return "waiting", ""
    return "unknown", "yellow"


def _table(rows: Sequence[Row], title: str, width: int) -> list[Line]:
    room = width - len(_INDENT)
    lines = arrange_table(choose(make_columns(rows, title), room), room) if rows else []
    return [(Span(_INDENT), *line) for line in lines]


def _host_row(host: HostStatus) -> Row:
    return Row(
        host.name,
        slot=host.name,
        address=endpoint(host.address, host.port),
        step_text="ready" if host.reachable else "no answer",
        ready=host.reachable,
        gpu_percent=host.gpu_percent,
        cpu_percent=host.cpu_percent,
        memory_bytes=host.memory_bytes,
    )


def _task_row(task: TaskStatus, job: JobStatus) -> Row:
    word = _task_word(task, job)
    return Row(
        task.task or task.slot,
        slot=task.slot,
        step_text=word,
        phase=task.phase if word in ("", STOPPED) else None,
        exit=task.exit,
        progress=task.progress or Progress(),
    )


def _task_word(task: TaskStatus, job: JobStatus) -> str:
    """Return the state of a task if its phase does not describe it."""
    if not task.task:
        return "spare"
    if task.phase is Phase.EXITED:  # after a success, a task that a signal ended was not needed any more
        has_succeeded = job.result is not None and job.result.outcome is Outcome.SUCCEEDED
        return STOPPED if has_succeeded and task.exit and task.exit.signal else ""
    if task.phase is None:
        return "unknown"
    return "" if task.alive else "lost"
