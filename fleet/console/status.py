"""`fleet status` as text, at most as wide as the terminal."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fleet import events
from fleet.console import formatting, tables
from fleet.console.jsonl import JsonSink
from fleet.console.log_lines import clean
from fleet.console.messages import describe_awaited
from fleet.errors import fold
from fleet.steps import Step
from provision.quantities import HOURS_PER_MONTH, counted, format_money, format_span
from train.agent.files.disk import DISK_LOW
from train.agent.protocol.wording import endpoint

_CAUSE_LINES = 12
_WATCH_S = 2.0  # between two questions to the hosts
_ROWS_MIN = 3  # of a table, on the smallest terminal


def render_status(
    fleets: Sequence[events.FleetStatus],
    *,
    now: float,
    width: int = 80,
    height: int | None = None,
    color: bool = False,
) -> str:
    """Return fleets, their hosts, and newest jobs as text; no line is longer than `width`.

    Args:
        fleets: State of the fleets.
        now: Seconds since the epoch.
        width: Columns of the terminal.
        height: Lines of the terminal; rows of long tables are folded to fit it. None: all rows.
        color: True if the stream accepts colors.
    """
    return tables.render(arrange_status(fleets, now, width, height), width, color=color)


def arrange_status(
    fleets: Sequence[events.FleetStatus], now: float, width: int, height: int | None = None
) -> list[Text]:
    """Return the lines that `render_status` returns as text."""
    whole = _arrange(fleets, now, width, None)
    if height is None or len(whole) < height:
        return whole
    tables = sum(1 + (fleet.job is not None) for fleet in fleets)
    spare = height - 1 - len(_arrange(fleets, now, width, _ROWS_MIN))
    return _arrange(fleets, now, width, _ROWS_MIN + max(0, spare) // max(1, tables))


def _arrange(fleets: Sequence[events.FleetStatus], now: float, width: int, room: int | None) -> list[Text]:
    """Return all fleets, with an empty line between them; at most `room` rows in each table."""
    lines: list[Text] = []
    for fleet in fleets:
        lines += [Text(""), *_fleet(fleet, now, width, room)] if lines else _fleet(fleet, now, width, room)
    return lines


def print_status(fleets: Sequence[events.FleetStatus], out: TextIO, *, json: bool) -> None:
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
    width, lines = formatting.read_size(out)
    color = formatting.accepts_color(out, os.environ)
    text = render_status(fleets, now=time.time(), width=width, height=lines if out.isatty() else None, color=color)
    out.write(text.encode(out.encoding or "utf-8", "replace").decode(out.encoding or "utf-8"))
    out.flush()


def watch_status(
    read: Callable[[], Sequence[events.FleetStatus]],
    out: TextIO,
    *,
    size: Callable[[], os.terminal_size] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Show fleets on a terminal again and again, until Ctrl-C.

    Args:
        read: Returns the present state of the fleets.
        out: A terminal that can move its cursor.
        size: Returns the present size of the terminal.
        pause: Waits for a number of seconds.
    """
    console = tables.make_console(out, color=formatting.accepts_color(out, os.environ))
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        while True:
            fleets, now = read(), time.time()
            console.size = present = size() if size else formatting.read_size(out)
            live.update(Group(*arrange_status(fleets, now, present.columns, present.lines)), refresh=True)
            pause(_WATCH_S)


def _fleet(fleet: events.FleetStatus, now: float, width: int, room: int | None) -> list[Text]:
    lines = _header(fleet, now, width)
    if _is_unready(fleet):
        return [*lines, *_paragraph(fleet.hosts[0].reason, width, "yellow")]
    lines += _table([_host_row(host) for host in fleet.hosts], "HOST", width, room)
    lines += _describe_failures(fleet.hosts, width)
    lines += _storage(fleet, now, width)
    if fleet.stopped_at:
        start, delete = Step("up").text(fleet.name), Step("down").text(fleet.name)
        return [*lines, *_paragraph(f"`{start}` starts it again; `{delete}` deletes it", width, "dim")]
    if fleet.job is None:
        return [*lines, tables.make_line(f"{formatting.INDENT}no job yet", "dim")]
    lines += [Text(""), _job_line(fleet.job, now, width), *_growth(fleet.job, width)]
    lines += _table([_task_row(task, fleet.job) for task in fleet.job.tasks], "TASK", width, room)
    if fleet.job.awaited is not None:
        lines += _paragraph(describe_awaited(fleet.job.awaited), width, "yellow")
    return [*lines, *_cause(fleet.job, width), *_queued(fleet)]


def _queued(fleet: events.FleetStatus) -> list[Text]:
    """Return a line for each queued job, in the order in which they run."""
    queued = [job for job in sorted(fleet.stored, key=lambda job: job.job) if job.queued_after]
    shown = [job for job in queued if fleet.job is None or job.job != fleet.job.id]
    return [tables.make_line(f"job {job.job}  queued after job {job.queued_after}") for job in shown]


def _paragraph(text: str, width: int, style: str = "") -> list[Text]:
    """Return a text in lines with an indentation; commands between backticks are not broken."""
    lines = formatting.wrap_text(clean(text), width, formatting.INDENT, formatting.INDENT).split("\n")
    return [tables.make_line(line, style) for line in lines]


def _storage(fleet: events.FleetStatus, now: float, width: int) -> list[Text]:
    """Describe results that are not on this computer, and what uses a disk that is nearly full."""
    lines: list[Text] = []
    disks = sorted((host for host in fleet.hosts if host.disk_free >= 0), key=lambda host: host.disk_free)
    low = bool(disks) and disks[0].disk_free < DISK_LOW
    if low:
        free, total = (formatting.format_size(size) for size in (disks[0].disk_free, disks[0].disk_total))
        size = formatting.format_size(sum(job.size for job in fleet.stored))
        jobs, free = f"{counted(len(fleet.stored), 'job')}, {size}", f"{free} of {total} free on {disks[0].name}"
        lines += _paragraph(f"stored: {jobs}; {free}", width, "yellow")
    waiting = sum(job.pulled in ("no", "partly") for job in fleet.stored)
    if low or waiting:
        is_due = waiting > 0 and fleet.delete_at > 0 and not fleet.stop_at
        step = Step("jobs", "--prune") if low else Step("pull") if is_due else Step("jobs")
        words = [f"{counted(waiting, 'job')} not pulled"] if waiting else []
        if is_due:
            words.append(f"deleted with the hosts in {format_span(max(0.0, fleet.delete_at - now))}")
        lines += _paragraph("; ".join([*words, f"`{step.text(fleet.name)}`"]), width, "yellow" if is_due else "dim")
    return lines


def _cause(job: events.JobStatus, width: int) -> list[Text]:
    """Return why the job ended so, as `fleet train` reports it: the verdict, else what the agents report."""
    reasons = [job.verdict.message] if job.verdict else job.result.reason.splitlines() if job.result else []
    room = max(1, width - len(formatting.INDENT))
    words = [line for reason in reasons for line in textwrap.wrap(clean(reason), room, max_lines=4, placeholder=" …")]
    lines: list[Text] = [tables.make_line(f"{formatting.INDENT}{line}") for line in words[:_CAUSE_LINES]]
    return [*lines, *(_paragraph(f"warning: {job.warning}", width, "yellow") if job.warning else [])]


def _is_unready(fleet: events.FleetStatus) -> bool:
    return [host.name for host in fleet.hosts] == [events.UNREADY]


def _describe_failures(all_hosts: Sequence[events.HostStatus], width: int) -> list[Text]:
    """Return why hosts do not answer, each reason once; in several lines, because commands must not be cut."""
    hosts: dict[str, list[events.HostStatus]] = {}
    for host in (host for host in all_hosts if not host.reachable and host.reason):
        hosts.setdefault(host.reason.replace(host.name, "\0"), []).append(host)
    lines: list[Text] = []
    for first, *others in hosts.values():
        reason = first.reason if first.name in first.reason else f"{first.name}: {first.reason}"
        same = f"; the same for {fold(host.name for host in others)}" if others else ""
        lines += _paragraph(reason + same, width, "yellow")
    return lines


def _header(fleet: events.FleetStatus, now: float, width: int) -> list[Text]:
    """Return the name, time, and cost of a fleet: one line, or more if they do not fit."""
    hosts = "not ready" if _is_unready(fleet) else counted(len(fleet.hosts), "host")
    left = Text.assemble((clean(fleet.name), "bold"), f"  {fleet.provider}, {hosts}")
    right = []
    if fleet.stopped_at and all(host.stopped for host in fleet.hosts):
        right.append(f"stopped for {format_span(now - fleet.stopped_at)}")
    elif fleet.created_at > 0 and not fleet.stopped_at:
        right.append(f"up {format_span(now - fleet.created_at)}")
    if fleet.price_usd_h > 0:
        limit = f" of {format_money(fleet.max_cost_usd)}" if fleet.max_cost_usd else ""
        disks = all(host.stopped for host in fleet.hosts)
        price = f"disks {format_money(fleet.price_usd_h * HOURS_PER_MONTH)}/month" if disks else ""
        price = price or f"{format_money(fleet.price_usd_h)}/h"
        right.append(f"{price}, {format_money(fleet.cost_usd)}{limit} so far")
    if end := formatting.format_lifetime(fleet.stop_at, fleet.delete_at, now):
        right.append(end)
    facts = "  ".join(right)
    if left.cell_len + tables.GAP + cell_len(facts) > width and facts:
        left.truncate(width, overflow="ellipsis")
        return [left, *_paragraph(facts, width)]
    return [tables.join_ends(left, facts, width)]


def _job_line(job: events.JobStatus, now: float, width: int) -> Text:
    word, style = _job_word(job)
    attempt = f"  attempt {job.attempt}" if job.attempts > 1 or job.attempt > 1 else ""
    attempt += f" of {job.attempts}" if job.attempts > 1 else ""
    title = clean(f"{job.name}: {job.script}" if job.name else job.script)
    left = Text.assemble((f"job {clean(job.id)}", "bold"), "  ", (clean(word), style), f"{attempt}  {title}")
    elapsed = (job.result.at if job.result else now) - job.started_at
    return tables.join_ends(left, formatting.format_clock(elapsed) if job.started_at > 0 else "", width)


def _growth(job: events.JobStatus, width: int) -> list[Text]:
    """Return the number of workers of a running job that takes in new hosts, and which hosts join next."""
    if job.max_workers is None or job.result is not None:
        return []
    workers = sum(task.task.startswith("worker-") for task in job.tasks)
    text = f"{workers} of at most {counted(job.max_workers, 'worker')}"
    if job.joining:
        text += f"; {fold(job.joining)} {'joins' if len(job.joining) == 1 else 'join'} at the next checkpoint"
    return _paragraph(text, width, "dim")


def _job_word(job: events.JobStatus) -> tuple[str, str]:
    if job.result is not None:
        tones = {events.Outcome.SUCCEEDED: "green", events.Outcome.CANCELLED: "yellow"}
        return job.result.outcome.value, tones.get(job.result.outcome, "red")
    if job.queued_after or job.waits:
        return (
            (f"queued after job {job.queued_after}", "") if job.queued_after else ("waiting to start again", "yellow")
        )
    if any(task.phase is events.Phase.STOPPING for task in job.tasks):
        return "stopping", "yellow"
    if any(task.phase is events.Phase.RUNNING and task.alive for task in job.tasks):
        return "running", "green"
    if any(task.phase is events.Phase.WAITING and task.alive for task in job.tasks):
        return "waiting", ""
    return "unknown", "yellow"


def _table(rows: Sequence[tables.Row], title: str, width: int, room: int | None) -> list[Text]:
    """Return a table of at most `room` rows."""
    slow = tables.find_stragglers(rows)
    shown, folded = tables.fold_rows(rows, slow, len(rows) if room is None else room)
    columns = [*tables.make_columns(shown, title, slow), tables.Column("", shown, lambda row: row.activity, rank=1)]
    table = tables.make_table(columns, width - len(formatting.INDENT)) if shown else []
    return [Text(formatting.INDENT, no_wrap=True).append_text(line) for line in [*table, *folded]]


def _host_row(host: events.HostStatus) -> tables.Row:
    return tables.Row(
        host.name,
        slot=host.name,
        address=endpoint(host.address, host.port) if host.address and not host.stopped else "",
        step_text="ready" if host.reachable else tables.STOPPED if host.stopped else "no answer",
        ready=host.reachable,
        lost="" if host.reachable or host.stopped else host.reason or "no answer",
        gpu_percent=host.gpu_percent,
        cpu_percent=host.cpu_percent,
        memory_bytes=host.memory_bytes,
    )


def _task_row(task: events.TaskStatus, job: events.JobStatus) -> tables.Row:
    word = _task_word(task, job)
    return tables.Row(
        task.task or task.slot,
        slot=task.slot,
        step_text=word,
        phase=task.phase if word in ("", tables.STOPPED) else None,
        exit=task.exit,
        progress=task.progress or events.Progress(),
        awaited=job.awaited is not None and job.awaited.task == task.task,
    )


def _task_word(task: events.TaskStatus, job: events.JobStatus) -> str:
    """Return the state of a task if its phase does not describe it."""
    if not task.task:
        return "joining" if task.slot in job.joining else "spare"
    if task.phase is events.Phase.EXITED:  # after a success, a task that a signal ended was not needed any more
        has_succeeded = job.result is not None and job.result.outcome is events.Outcome.SUCCEEDED
        return tables.STOPPED if has_succeeded and task.exit and task.exit.signal else ""
    if task.phase is None:
        return "unknown"
    return "" if task.alive else "lost"
