"""Reports of commands as text: prices, orphaned resources, prerequisites, results; some lines each."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from fleet import events
from fleet.console.formatting import format_clock, format_metric, format_rate, format_short_size, format_size
from fleet.console.log_lines import clean
from fleet.console.messages import format_plan
from fleet.console.pages import INDENT, PROSE_MAX, shorten_locations, wrap_text
from fleet.console.tables import GAP, Column, fit, make_table, measure_table, render
from fleet.errors import fold
from provision.quantities import HOURS_PER_MONTH, counted, format_money, format_span
from train.lint.finding import Finding

T = TypeVar("T")

_NAMES = 24  # columns, of the names of metrics
_WIDE = 120  # from this width on, a job takes one line
_OFFERS = 5  # shown
_ORPHANS = 40  # shown
_IMAGE = "image"
_JOBS = 4  # shown, of those that a deletion would lose
_PATHS = 3  # shown, of each job
_DISKS = 4  # shown, those with the least free space


@dataclass(frozen=True)
class Page:
    """Lay out a report.

    Attributes:
        columns: Columns of the terminal; 0 if the output is not a terminal.
    """

    columns: int = 0

    @property
    def width(self) -> int:
        """Return the columns of a paragraph."""
        return min(self.columns or PROSE_MAX, PROSE_MAX)

    @property
    def table_width(self) -> int:
        """Return the columns of a table that uses the whole terminal."""
        return self.columns or PROSE_MAX

    def paragraph(self, text: str, first: str = "", indent: str = "") -> str:
        """Return a paragraph: the indentation of its first line is `first`, that of the others `indent`."""
        return wrap_text(clean(text), self.width, first, indent) + "\n"

    def item(self, mark: str, words: str) -> str:
        """Format a status word and a text."""
        return self.paragraph(f"{mark:8} {words}", indent=" " * 9)

    def table(self, columns: Sequence[Column]) -> str:
        """Return the columns that fit as a table with an indentation."""
        room = self.width - len(INDENT)
        return textwrap.indent(render(make_table(columns, room), room), INDENT)

    def locations(self, locations: Sequence[str], used: int) -> list[str]:
        """Return locations ``HOST:PATH`` that fit next to `used` columns; whole if the output is not a terminal."""
        cleaned = [clean(location) for location in locations]
        return shorten_locations(cleaned, self.columns - used) if self.columns else cleaned


def format_report(event: events.Event, width: int = 0) -> str:
    """Return the lines of a report with a final newline; empty for other events.

    Args:
        event: The event.
        width: Columns of the terminal, of which only tables of jobs and paths use more than 80; 0 if the output is
            not a terminal: then paths are not shortened.
    """
    words = _REPORTS.get(type(event))
    return words(event, Page(width)) if words else ""


def _quoted(event: events.Quoted, page: Page) -> str:
    kind = "spot instance" if event.spot else "instance"
    payer = f", project {event.project}" if event.project else ""
    head = f"fleet {event.fleet}: {counted(event.instances, kind)}{payer}"
    if len(event.offers) > 1:
        head += f",{' all' if event.instances > 1 else ''} in the first of these zones with capacity"
    shown = event.offers[:_OFFERS]
    columns = [
        Column.of("ZONE", shown, lambda offer: offer.zone),
        Column.of("MACHINE", shown, lambda offer: offer.machine, rank=1),
        Column.of("USD/H EACH", shown, lambda offer: _price(offer.price_usd_h, 1), right=True),
        Column.of("USD/H ALL", shown, lambda offer: _price(offer.price_usd_h, event.instances), right=True),
    ]
    if event.instances == 1:
        columns[2:] = [replace(columns[2], title="USD/H")]
    text = page.paragraph(head) + page.table(columns)
    if len(event.offers) > len(shown):
        text += f"{INDENT}and {len(event.offers) - len(shown)} more\n"
    priced = "spot prices" if event.spot else "Flex-start prices" if event.flex_start else "on-demand prices"
    dated = f", estimate of {event.priced_at}" if event.priced_at else ", an estimate"
    dated += f" from {event.price_source}" if event.price_source else ""
    end = "only fleet down deletes them"
    if event.stop_after_s:
        end = f"each powers off {format_span(event.stop_after_s)} after its start; its disk is paid until fleet down"
    elif event.delete_after_s:
        end = f"each is deleted automatically {format_span(event.delete_after_s)} after its start"
    return (
        text
        + page.paragraph(f"{priced}{dated}, with disks and addresses, without network traffic; {end}")
        + _limit(event, page)
        + "".join(map(page.paragraph, event.notes))
    )


def _limit(event: events.Quoted, page: Page) -> str:
    """Describe the limit of the cost, and how much of it the instances of the first offer use."""
    if not event.max_cost_usd or not event.offers:
        return ""
    most = (event.offers[0].price_usd_h or 0.0) * event.instances * event.delete_after_s / 3600
    used = f", after {format_money(event.used_usd)} for the other instances" if event.used_usd else ""
    return page.paragraph(f"limit {format_money(event.max_cost_usd)}: at most {format_money(most)} for these{used}")


def _price(usd_h: float | None, count: int) -> str:
    return "unknown" if usd_h is None else f"{usd_h * count:,.3f}"


def _orphans_found(event: events.OrphansFound, page: Page) -> str:
    if not event.orphans:
        return "no orphaned resources found\n"
    shown = event.orphans[:_ORPHANS]
    columns = [
        Column.of("KIND", shown, lambda orphan: orphan.kind),
        Column.of("NAME", shown, lambda orphan: orphan.name, limit=max(12, page.width - 48)),
        Column.of("ZONE", shown, lambda orphan: orphan.zone, rank=3),
        Column.of("USER", shown, lambda orphan: orphan.user, rank=2, limit=16),
        Column.of("AGE", shown, lambda orphan: _age(orphan.created_at), rank=1, right=True),
        Column.of(
            "COST", shown, lambda orphan: format_money(orphan.cost_usd) if orphan.cost_usd > 0 else "", right=True
        ),
        Column.of("SIZE", shown, lambda orphan: f"{orphan.size_gb:.1f} GB" if orphan.size_gb else "", right=True),
        Column.of("PER MONTH", shown, _usd_month, right=True),
    ]
    images = [orphan for orphan in event.orphans if orphan.kind == _IMAGE]
    resources = len(event.orphans) - len(images)
    counts = [counted(resources, "orphaned resource")] if resources else []
    counts += [counted(len(images), "image")] if images else []
    text = page.paragraph(f"{' and '.join(counts)}:") + page.table(columns)
    if len(event.orphans) > len(shown):
        text += f"{INDENT}and {len(event.orphans) - len(shown)} more\n"
    others = sum(not orphan.to_delete for orphan in event.orphans if orphan.kind != _IMAGE)
    if others:
        text += page.paragraph(f"{others} owned by other users; --all includes them")
    kept = sum(not image.to_delete for image in images)
    if kept:
        text += page.paragraph(
            f"{counted(kept, 'image')} kept; --images deletes yours, with --all those of other users, too"
        )
    return text


def _usd_month(orphan: events.Orphan) -> str:
    return format_money(orphan.price_usd_h * HOURS_PER_MONTH) if orphan.size_gb else ""


def _age(began_at: float) -> str:
    return format_span(time.time() - began_at) if began_at else ""


def _checked(event: events.Checked, page: Page) -> str:
    mark = "unknown" if event.ok is None else "ok" if event.ok else "missing"
    text = page.item(mark, f"{event.subject}: {event.message}")
    if event.ok:
        return text
    indent = " " * 9
    hint = page.paragraph(event.hint, indent, indent) if event.hint else ""
    return text + hint + "".join(f"{indent}{clean(line)}\n" for line in event.next_step.split("\n") if line)


def _hosts_checked(event: events.HostsChecked, page: Page) -> str:
    def column(title: str, text: Callable[[events.HostFacts], str], **layout: Any) -> Column:
        return Column.of(title, event.hosts, lambda host: text(host) if host.python else "", **layout)

    def version(title: str, package: str, rank: int = 0) -> Column:
        return column(title, lambda host: host.versions.get(package, "none"), rank=rank)

    columns = [
        Column.of("HOST", event.hosts, lambda host: host.host),
        Column.of("ADDRESS", event.hosts, lambda host: host.address, rank=6),
        version("PYTHON", "python"),
        version("TENSORFLOW", "tensorflow"),
        version("KERAS", "keras", rank=1),
        version("TF-KERAS", "tf_keras", rank=2),
        column("GPUS", _gpus, limit=20),
        column("DISK", lambda host: format_short_size(host.disk_free), rank=3, right=True),
        column("MEMORY", lambda host: format_short_size(host.memory), rank=4, right=True),
        column("ARCH", lambda host: host.machine, rank=5),
    ]
    text = page.paragraph(f"fleet {event.fleet}: {counted(len(event.hosts), 'host')}") + page.table(columns)
    text += "".join(page.item("warning", words) for words in event.warnings)
    text += "".join(page.item("problem", words) for words in event.problems)
    if event.script_fails:
        return text + page.item("fails", "hosts are ready, but the script is expected to fail: see `fleet lint`")
    return text + ("" if event.problems else f"{'ok':8} hosts are ready\n")


def _gpus(host: events.HostFacts) -> str:
    return ", ".join(f"{host.gpus.count(name)} x {name}" for name in dict.fromkeys(host.gpus))


def _smoke_tested(event: events.SmokeTested, page: Page) -> str:
    lines = [line[: page.width - len(INDENT) - 1] for line in map(clean, event.lines)]
    return page.item("ok" if event.ok else "failed", f"{event.host}: {event.message}") + "".join(
        f"{INDENT} {line}\n" for line in lines
    )


def _finding(event: Finding, page: Page) -> str:
    text = page.paragraph(f"{event.location}: {event.rule} {event.severity.value}: {event.message}", indent=INDENT)
    parts = (("why:  ", event.reason), ("fix:  ", event.fix))
    return text + "".join(page.paragraph(words, INDENT + label, " " * 8) for label, words in parts if words)


def _jobs_listed(event: events.JobsListed, page: Page) -> str:
    text = page.paragraph(f"fleet {event.fleet}: {counted(len(event.jobs), 'job') if event.jobs else 'no job yet'}")
    if event.jobs:
        text += _jobs_table(event.jobs, page.table_width)
    shown = sorted(event.disks, key=lambda disk: disk.free)[:_DISKS]
    for disk in shown:
        room = f"{format_size(disk.free)} of {format_size(disk.total)} free on the disk of {disk.host}"
        text += page.paragraph(f"{INDENT}{room}, its jobs use {format_size(disk.jobs)}", indent=2 * INDENT)
    if len(event.disks) > len(shown):
        text += f"{INDENT}more space is free on {counted(len(event.disks) - len(shown), 'other host')}\n"
    return text + _silent(event.silent, page)


def _jobs_table(jobs: tuple[events.StoredResults, ...], width: int) -> str:
    """Return a row for each job; in a narrow terminal, a second line has what the columns do not show."""
    room = width - len(INDENT)
    columns = [
        Column.of("JOB", jobs, lambda job: job.job),
        Column.of("NAME", jobs, lambda job: job.name or "", rank=1, limit=40 if width >= _WIDE else 12),
        Column.of("STATE", jobs, lambda job: job.state or "unknown"),
        Column.of("TIME", jobs, _job_time, right=True),
    ]
    free = 36 if width >= _WIDE else max(16, room - measure_table(make_table(columns, room)) - GAP)
    columns.append(Column.of("METRICS", jobs, lambda job: _metrics(job, free), rank=2))
    if width >= _WIDE:
        columns += [
            Column.of("PROGRAM", jobs, _program, rank=1, limit=max(20, width - 120)),
            Column.of("RESULTS", jobs, _location, limit=width // 3),
        ]
    head, *lines = render(make_table(columns, room), room).splitlines()
    if width < _WIDE:
        lines = [
            f"{line}\n{clean(fit(f'{INDENT}{_program(job)}; {_location(job)}', room))}"
            for line, job in zip(lines, jobs, strict=True)
        ]
    return textwrap.indent("\n".join([head, *lines]) + "\n", INDENT)


def _jobs_compared(event: events.JobsCompared, page: Page) -> str:
    """Return a line for each property, with an asterisk where the jobs differ; long values are wrapped."""
    pairs = list(zip(_properties(event.first), _properties(event.second), strict=True))
    rows = [(name, first, second) for (name, first), (_, second) in pairs]
    rows += _paired(event.first.versions or {}, event.second.versions or {})
    rows += _paired(event.first.metrics or {}, event.second.metrics or {})
    title = max(len(name) for name, _, _ in rows)
    room = max(1, (page.table_width - len(INDENT) - title - 2 * GAP) // 2)
    table = Table.grid()
    for width in (len(INDENT) + title + GAP, room, GAP, room):
        table.add_column(width=width)
    for name, first, second in [("JOB", event.first.job, event.second.job), *rows]:
        mark = "* " if first != second and name != "JOB" else INDENT
        table.add_row(mark + name, Text(clean(first) or "-"), "", Text(clean(second) or "-"))
    return render(table, page.table_width)


def _properties(job: events.StoredResults) -> list[tuple[str, str]]:
    return [
        ("name", job.name or ""),
        ("script", job.script),
        ("arguments", shlex.join(job.arguments or ())),
        ("code", (job.code_sha256 or "")[:12]),
        ("state", job.state),
        ("time", _job_time(job)),
        ("steps/s", "" if job.steps_per_s is None else format_rate(job.steps_per_s)),
    ]


def _paired(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name and value of each entry that one of two mappings has."""

    def text(value: Any) -> str:
        return format_metric(value) if isinstance(value, (int, float)) else str(value or "")

    names = dict.fromkeys([*first, *second])
    return [(fit(clean(name), _NAMES), text(first.get(name)), text(second.get(name))) for name in names]


def _job_time(job: events.StoredResults) -> str:
    if job.state == "running" and job.started_at:
        return format_clock(time.time() - job.started_at)
    return format_clock(job.duration_s) if job.duration_s is not None else ""


def _metrics(job: events.StoredResults, room: int) -> str:
    """Return ``loss 0.3412, accuracy 0.9``: the values for validation first, as many as fit, and at least one."""
    values = sorted((job.metrics or {}).items(), key=lambda item: not item[0].startswith("val_"))
    pairs = [f"{name} {format_metric(value)}" for name, value in values]
    while len(pairs) > 1 and len(", ".join(pairs)) > room:
        pairs.pop()
    return ", ".join(pairs)


def _program(job: events.StoredResults) -> str:
    return " ".join([job.script or "unknown", *map(shlex.quote, job.arguments or ())])


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


def _silent(hosts: tuple[str, ...], page: Page) -> str:
    if not hosts:
        return ""
    verb, they = ("does", "it holds") if len(hosts) == 1 else ("do", "they hold")
    return page.paragraph(f"{fold(hosts)} {verb} not answer: it is unknown what {they}")


def _results_at_risk(event: events.ResultsAtRisk, page: Page) -> str:
    text = ""
    if event.jobs:
        end = "jobs on the hosts will be deleted" if event.pruned else "results exist on the hosts only"
        text += page.paragraph(f"fleet {event.fleet}: these {end}:")
    text += "".join(_job_at_risk(job, page) for job in event.jobs[:_JOBS])
    if len(event.jobs) > _JOBS:
        rest = event.jobs[_JOBS:]
        text += f"{INDENT}and {counted(len(rest), 'more job')}, {format_size(sum(job.size for job in rest))}\n"
    return text + _silent(event.silent, page)


def _job_at_risk(job: events.StoredResults, page: Page) -> str:
    age = f", started {_age(job.started_at)} ago" if job.started_at and not job.queued_after else ""
    pulled = {"yes": "pulled, ", "partly": "partly pulled, ", "no": "not pulled, "}.get(job.pulled, "")
    script = f" {job.script}" if job.script else ""
    state = f"queued after job {job.queued_after}" if job.queued_after else job.state or "unknown state"
    text = page.paragraph(f"job {job.job}{script}: {pulled}{state}{age}, {format_size(job.size)}")
    kinds: dict[str, int] = {}
    for result in job.results:
        kinds[result.kind] = kinds.get(result.kind, 0) + result.size
    if kinds:
        text += page.paragraph(
            f"{INDENT}{', '.join(f'{kind} {format_size(count)}' for kind, count in kinds.items())}"
        )
    if job.pulled in ("no", "partly") and job.directory:
        text += page.paragraph(f"{INDENT}pulled before to {job.directory}", indent=INDENT)
    shown, rest = _first_places(job.paths)
    return text + "".join(f"{INDENT}{place}\n" for place in page.locations(shown, len(INDENT))) + rest


def _results_found(event: events.ResultsFound, page: Page) -> str:
    shown, rest = _first_places([result for result in event.results if result.kind != "logs"])
    sizes = [f"{format_size(result.size)}, {counted(result.files, 'file')}" for result in shown]
    widest = max(map(len, sizes), default=0)
    places = page.locations([f"{result.host}:{result.path}" for result in shown], len(INDENT) + widest + GAP)
    lines = [f"{INDENT}{size:{widest}}{' ' * GAP}{place}\n" for size, place in zip(sizes, places, strict=True)]
    text = f"results: {counted(event.files, 'file')}, {format_size(event.size)}\n"
    deadline = ""
    if event.delete_at:
        at = time.strftime("%Y-%m-%d at %H:%M", time.localtime(event.delete_at))
        deadline = f"{INDENT}not pulled yet; deleted with the hosts on {at}\n"
    return text + "".join(lines) + rest + deadline + f"next:    {clean(event.next_step)}\n"


def _first_places(places: Sequence[T]) -> tuple[Sequence[T], str]:
    """Return the first places, and a line about the others."""
    if len(places) <= _PATHS + 1:
        return places, ""
    return places[:_PATHS], f"{INDENT}and {len(places) - _PATHS} more places\n"


_REPORTS: dict[type, Callable[[Any, Page], str]] = {
    events.TaskPlanned: lambda event, page: format_plan(event, page.columns),
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
