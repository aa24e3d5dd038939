"""Reports of commands as text: prices, orphaned resources, prerequisites, results; some lines each."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fleet import events
from fleet.console import formatting
from fleet.console.formatting import format_size, wrap_text
from fleet.console.log_lines import clean
from fleet.console.messages import format_plan
from fleet.console.tables import GAP, Column, fit, make_table, render
from fleet.errors import fold
from provision.quantities import HOURS_PER_MONTH, counted, format_money, format_span
from train.lint.finding import Finding

T = TypeVar("T")

_NAMES = 24  # columns, of the names of metrics
_OFFERS = 5  # shown
_ORPHANS = 40  # shown
_JOBS = 4  # shown, of those that a deletion would lose
_PATHS = 3  # shown, of each job
_DISKS = 4  # shown, those with the least free space
_CHECKED = " " * 9  # below the text of a status word


def format_report(event: events.Event, width: int = 0) -> str:
    """Return the lines of a report with a final newline; empty for other events.

    Args:
        event: The event.
        width: Columns of the terminal, of which only tables of jobs and paths use more than 80; 0 if the output is
            not a terminal: then paths are not shortened. Commands are never wrapped.
    """
    words = _REPORTS.get(type(event))
    return words(event, width) if words else ""


def _paragraph(text: str, width: int, first: str = "", indent: str = "") -> str:
    return wrap_text(clean(text), _prose(width), first, indent) + "\n"


def _prose(width: int) -> int:
    """Return the columns of a paragraph."""
    return min(width or formatting.PROSE_MAX, formatting.PROSE_MAX)


def _fit_location(location: str, width: int, used: int) -> str:
    """Return ``HOST:PATH``, without the first directories if it does not fit a terminal next to `used` columns."""
    host, _, path = clean(location).partition(":")
    text, parts = f"{host}:{path}", path.split("/")
    while width and cell_len(text) > width - used and len(parts) > 1:
        del parts[0]
        text = f"{host}:…/{'/'.join(parts)}"
    return text


def _item(word: str, text: str, width: int) -> str:
    """Format a status word and a text."""
    return _paragraph(f"{word:8} {text}", width, indent=_CHECKED)


def _table(columns: Sequence[Column], width: int) -> str:
    """Return the columns that fit as a table with an indentation."""
    room = _prose(width) - len(formatting.INDENT)
    return "".join(f"{formatting.INDENT}{line.plain}\n" for line in make_table(columns, room))


def _first(things: Sequence[T], count: int) -> tuple[Sequence[T], str]:
    """Return the first things, and a line with the number of the others; empty if there are none."""
    more = len(things) - count
    return things[:count], f"{formatting.INDENT}and {more} more\n" if more > 0 else ""


def _quoted(event: events.Quoted, width: int) -> str:
    kind = "spot instance" if event.spot else "instance"
    payer = f", project {event.project}" if event.project else ""
    head = f"fleet {event.fleet}: {counted(event.instances, kind)}{payer}"
    if len(event.offers) > 1:
        head += f",{' all' if event.instances > 1 else ''} in the first of these zones with capacity"
    shown, more = _first(event.offers, _OFFERS)
    is_one = event.instances == 1

    def price(offer: Any, count: int) -> str:
        return "unknown" if offer.price_usd_h is None else f"{offer.price_usd_h * count:,.3f}"

    columns = [
        Column("ZONE", shown, lambda offer: offer.zone),
        Column("MACHINE", shown, lambda offer: offer.machine, rank=1),
        Column("USD/H" if is_one else "USD/H EACH", shown, lambda offer: price(offer, 1), right=True),
        Column("USD/H ALL", [] if is_one else shown, lambda offer: price(offer, event.instances), right=True),
    ]
    priced = "spot prices" if event.spot else "Flex-start prices" if event.flex_start else "on-demand prices"
    dated = f", estimate of {event.priced_at}" if event.priced_at else ", an estimate"
    dated += f" from {event.price_source}" if event.price_source else ""
    end = "only fleet down deletes them"
    if event.stop_after_s:
        end = f"each powers off {format_span(event.stop_after_s)} after its start; its disk is paid until fleet down"
    elif event.delete_after_s:
        end = f"each is deleted automatically {format_span(event.delete_after_s)} after its start"
    notes = [f"{priced}{dated}, with disks and addresses, without network traffic; {end}"]
    if event.max_cost_usd and event.offers:
        most = (event.offers[0].price_usd_h or 0.0) * event.instances * event.delete_after_s / 3600
        used = f", after {format_money(event.used_usd)} for the other instances" if event.used_usd else ""
        notes.append(f"limit {format_money(event.max_cost_usd)}: at most {format_money(most)} for these{used}")
    text = _paragraph(head, width) + _table(columns, width) + more
    return text + "".join(_paragraph(note, width) for note in [*notes, *event.notes])


def _orphans_found(event: events.OrphansFound, width: int) -> str:
    if not event.orphans:
        return "no orphaned resources found\n"
    shown, more = _first(event.orphans, _ORPHANS)

    def usd_month(orphan: events.Orphan) -> str:
        return format_money(orphan.price_usd_h * HOURS_PER_MONTH) if orphan.size_gb else ""

    columns = [
        Column("KIND", shown, lambda orphan: orphan.kind),
        Column("NAME", shown, lambda orphan: orphan.name, limit=max(12, _prose(width) - 48)),
        Column("ZONE", shown, lambda orphan: orphan.zone, rank=3),
        Column("USER", shown, lambda orphan: orphan.user, rank=2, limit=16),
        Column("AGE", shown, lambda orphan: _age(orphan.created_at), rank=1, right=True),
        Column("COST", shown, lambda orphan: format_money(orphan.cost_usd) if orphan.cost_usd else "", right=True),
        Column(
            "SIZE", shown, lambda orphan: f"{orphan.size_gb:.1f} GB" if orphan.size_gb else "", rank=4, right=True
        ),
        Column("PER MONTH", shown, usd_month, right=True),
    ]
    images = [orphan for orphan in event.orphans if orphan.kind == "image"]
    resources = [orphan for orphan in event.orphans if orphan.kind != "image"]
    counts = [counted(len(resources), "orphaned resource")] if resources else []
    counts += [counted(len(images), "image")] if images else []
    text = _paragraph(f"{' and '.join(counts)}:", width) + _table(columns, width) + more
    if others := sum(not orphan.to_delete for orphan in resources):
        text += _paragraph(f"{others} owned by other users; --all includes them", width)
    if kept := sum(not image.to_delete for image in images):
        words = "kept; --images deletes yours, with --all those of other users, too"
        text += _paragraph(f"{counted(kept, 'image')} {words}", width)
    return text


def _age(began_at: float) -> str:
    return format_span(time.time() - began_at) if began_at else ""


def _checked(event: events.Checked, width: int) -> str:
    word = "unknown" if event.ok is None else "ok" if event.ok else "missing"
    text = _item(word, f"{event.subject}: {event.message}", width)
    if event.ok:
        return text
    hint = _paragraph(event.hint, width, _CHECKED, _CHECKED) if event.hint else ""
    return text + hint + "".join(f"{_CHECKED}{clean(line)}\n" for line in event.next_step.split("\n") if line)


def _hosts_checked(event: events.HostsChecked, width: int) -> str:
    def column(title: str, text: Callable[[events.HostFacts], str], **layout: Any) -> Column:
        return Column(title, event.hosts, lambda host: text(host) if host.python else "", **layout)

    def version(title: str, package: str, rank: int = 0) -> Column:
        return column(title, lambda host: host.versions.get(package, "none"), rank=rank)

    def gpus(host: events.HostFacts) -> str:
        return ", ".join(f"{host.gpus.count(name)} x {name}" for name in dict.fromkeys(host.gpus))

    columns = [
        Column("HOST", event.hosts, lambda host: host.host),
        Column("ADDRESS", event.hosts, lambda host: host.address, rank=6),
        version("PYTHON", "python"),
        version("TENSORFLOW", "tensorflow"),
        version("KERAS", "keras", rank=1),
        version("TF-KERAS", "tf_keras", rank=2),
        column("GPUS", gpus, limit=20),
        column("DISK", lambda host: formatting.format_short_size(host.disk_free), rank=3, right=True),
        column("MEMORY", lambda host: formatting.format_short_size(host.memory), rank=4, right=True),
        column("ARCH", lambda host: host.machine, rank=5),
    ]
    items = [("warning", words) for words in event.warnings] + [("problem", words) for words in event.problems]
    if event.script_fails:
        items.append(("fails", "hosts are ready, but the script is expected to fail: see `fleet lint`"))
    elif not event.problems:
        items.append(("ok", "hosts are ready"))
    text = _paragraph(f"fleet {event.fleet}: {counted(len(event.hosts), 'host')}", width) + _table(columns, width)
    return text + "".join(_item(word, words, width) for word, words in items)


def _smoke_tested(event: events.SmokeTested, width: int) -> str:
    lines = [line[: _prose(width) - len(formatting.INDENT) - 1] for line in map(clean, event.lines)]
    head = _item("ok" if event.ok else "failed", f"{event.host}: {event.message}", width)
    return head + "".join(f"{formatting.INDENT} {line}\n" for line in lines)


def _finding(event: Finding, width: int) -> str:
    head = f"{event.location}: {event.rule} {event.severity.value}: {event.message}"
    parts = (("why:  ", event.reason), ("fix:  ", event.fix))
    details = [_paragraph(words, width, formatting.INDENT + label, " " * 8) for label, words in parts if words]
    return _paragraph(head, width, indent=formatting.INDENT) + "".join(details)


# --- jobs and their results ---------------------------------------------------------------------------------------


def _jobs_listed(event: events.JobsListed, width: int) -> str:
    count = counted(len(event.jobs), "job") if event.jobs else "no job yet"
    text = _paragraph(f"fleet {event.fleet}: {count}", width)
    if event.jobs:
        text += _jobs_table(event.jobs, width or formatting.PROSE_MAX)
    disks = sorted(event.disks, key=lambda disk: disk.free)
    shown, more = _first(disks, _DISKS)
    for disk in shown:
        room = f"{format_size(disk.free)} of {format_size(disk.total)} free on the disk of {disk.host}"
        text += _paragraph(
            f"{formatting.INDENT}{room}, its jobs use {format_size(disk.jobs)}", width, indent=2 * formatting.INDENT
        )
    return text + more + _silent(event.silent, width)


def _jobs_table(jobs: Sequence[events.StoredResults], width: int) -> str:
    """Return two lines for each job: the second one has the program and where its results are."""
    room = width - len(formatting.INDENT)
    columns = [
        Column("JOB", jobs, lambda job: job.job),
        Column("NAME", jobs, lambda job: job.name or "", rank=1, limit=12),
        Column("STATE", jobs, lambda job: job.state or "unknown"),
        Column("TIME", jobs, _job_time, right=True),
    ]
    free = room - sum(column.width(0) + GAP for column in columns if column.has_content)
    columns.append(Column("METRICS", jobs, lambda job: _metrics(job, max(16, free)), rank=2))
    head, *lines = [line.plain for line in make_table(columns, room)]
    for at, job in enumerate(jobs):
        program = " ".join([job.script or "unknown", *map(shlex.quote, job.arguments or ())])
        lines[at] += "\n" + fit(clean(f"{formatting.INDENT}{program}; {_location(job)}"), room)
    return textwrap.indent("\n".join([head, *lines]) + "\n", formatting.INDENT)


def _metrics(job: events.StoredResults, room: int) -> str:
    """Return ``val_loss 0.5, loss 0.3412``: the values for validation first, as many as fit, and at least one."""
    values = sorted((job.metrics or {}).items(), key=lambda item: not item[0].startswith("val_"))
    pairs = [f"{name} {formatting.format_metric(value)}" for name, value in values]
    while len(pairs) > 1 and len(", ".join(pairs)) > room:
        pairs.pop()
    return ", ".join(pairs)


def _jobs_compared(event: events.JobsCompared, width: int) -> str:
    """Return a line for each property, with an asterisk where the jobs differ; long values are wrapped."""
    width = width or formatting.PROSE_MAX
    first, second = _properties(event.first), _properties(event.second)
    title = max(map(len, (*first, *second)))
    room = max(1, (width - len(formatting.INDENT) - title - 2 * GAP) // 2)
    table = Table.grid()
    for size in (len(formatting.INDENT) + title + GAP, room, GAP, room):
        table.add_column(width=size)
    for name in dict.fromkeys((*first, *second)):
        values = first.get(name, ""), second.get(name, "")
        mark = "* " if values[0] != values[1] and name != "JOB" else formatting.INDENT
        table.add_row(mark + name, Text(clean(values[0]) or "-"), "", Text(clean(values[1]) or "-"))
    return render([table], width)


def _properties(job: events.StoredResults) -> dict[str, str]:
    """Return what is compared, by name: what was run, the versions of packages, and the metrics."""
    run = {
        "JOB": job.job,
        "name": job.name or "",
        "script": job.script,
        "arguments": shlex.join(job.arguments or ()),
        "code": (job.code_sha256 or "")[:12],
        "state": job.state,
        "time": _job_time(job),
        "steps/s": "" if job.steps_per_s is None else formatting.format_rate(job.steps_per_s),
    }
    metrics = {name: formatting.format_metric(value) for name, value in (job.metrics or {}).items()}
    return {
        fit(clean(name), _NAMES): text for name, text in ({**run, **(job.versions or {}), **metrics} | run).items()
    }


def _job_time(job: events.StoredResults) -> str:
    if job.state == "running" and job.started_at:
        return formatting.format_clock(time.time() - job.started_at)
    return formatting.format_clock(job.duration_s) if job.duration_s is not None else ""


def _location(job: events.StoredResults) -> str:
    """Return where the results are: the directory on this computer, or the hosts."""
    if job.queued_after:
        return f"waits for job {job.queued_after}"
    if job.pulled == "yes" and job.directory:
        return job.directory
    if not job.pulled:
        return "no results"
    hosts = fold(dict.fromkeys(result.host for result in job.results))
    partly = f", partly in {job.directory}" if job.pulled == "partly" else ""
    return f"{format_size(sum(result.size for result in job.results))} on {hosts}{partly}"


def _silent(hosts: tuple[str, ...], width: int) -> str:
    if not hosts:
        return ""
    verb, they = ("does", "it holds") if len(hosts) == 1 else ("do", "they hold")
    return _paragraph(f"{fold(hosts)} {verb} not answer: it is unknown what {they}", width)


def _results_at_risk(event: events.ResultsAtRisk, width: int) -> str:
    text = ""
    if event.jobs:
        end = "jobs on the hosts will be deleted" if event.pruned else "results exist on the hosts only"
        text += _paragraph(f"fleet {event.fleet}: these {end}:", width)
    text += "".join(_job_at_risk(job, width) for job in event.jobs[:_JOBS])
    if rest := event.jobs[_JOBS:]:
        text += (
            f"{formatting.INDENT}and {counted(len(rest), 'more job')}, {format_size(sum(job.size for job in rest))}\n"
        )
    return text + _silent(event.silent, width)


def _job_at_risk(job: events.StoredResults, width: int) -> str:
    age = f", started {_age(job.started_at)} ago" if job.started_at and not job.queued_after else ""
    pulled = {"yes": "pulled, ", "partly": "partly pulled, ", "no": "not pulled, "}.get(job.pulled, "")
    script = f" {job.script}" if job.script else ""
    state = f"queued after job {job.queued_after}" if job.queued_after else job.state or "unknown state"
    text = _paragraph(f"job {job.job}{script}: {pulled}{state}{age}, {format_size(job.size)}", width)
    kinds: dict[str, int] = {}
    for result in job.results:
        kinds[result.kind] = kinds.get(result.kind, 0) + result.size
    if kinds:
        text += _paragraph(
            f"{formatting.INDENT}{', '.join(f'{kind} {format_size(kinds[kind])}' for kind in kinds)}", width
        )
    if job.pulled in ("no", "partly") and job.directory:
        text += _paragraph(f"{formatting.INDENT}pulled before to {job.directory}", width, indent=formatting.INDENT)
    shown, more = _first(job.paths, _PATHS)
    return (
        text
        + "".join(f"{formatting.INDENT}{_fit_location(place, width, len(formatting.INDENT))}\n" for place in shown)
        + more
    )


def _results_found(event: events.ResultsFound, width: int) -> str:
    shown, more = _first([result for result in event.results if result.kind != "logs"], _PATHS)
    sizes = [f"{format_size(result.size)}, {counted(result.files, 'file')}" for result in shown]
    widest = max(map(len, sizes), default=0) + GAP
    text = f"results: {counted(event.files, 'file')}, {format_size(event.size)}\n"
    for size, result in zip(sizes, shown, strict=True):
        location = _fit_location(f"{result.host}:{result.path}", width, len(formatting.INDENT) + widest)
        text += f"{formatting.INDENT}{size:{widest}}{location}\n"
    text += more
    if event.delete_at:
        at = time.strftime("%Y-%m-%d at %H:%M", time.localtime(event.delete_at))
        text += f"{formatting.INDENT}not pulled yet; deleted with the hosts on {at}\n"
    return text + f"next:    {clean(event.next_step)}\n"


_REPORTS: dict[type, Callable[[Any, int], str]] = {
    events.TaskPlanned: format_plan,
    events.Quoted: _quoted,
    events.OrphansFound: _orphans_found,
    events.Checked: _checked,
    events.HostsChecked: _hosts_checked,
    events.SmokeTested: _smoke_tested,
    Finding: _finding,
    events.ResultsAtRisk: _results_at_risk,
    events.ResultsFound: _results_found,
    events.JobsListed: _jobs_listed,
    events.JobsCompared: _jobs_compared,
}
