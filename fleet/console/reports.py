"""Reports of commands as text: prices, orphaned resources, prerequisites, results; some lines each."""

from __future__ import annotations

import itertools
import shlex
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Any

from fleet import events
from fleet.console.columns import GAP, Column, Span, arrange_table, choose, fit, measure_table, render
from fleet.console.formatting import format_clock, format_metric, format_rate, format_short_size, format_size
from fleet.console.log_lines import clean
from fleet.console.messages import format_plan
from fleet.folding import fold
from provision.quantities import HOURS_PER_MONTH, counted, format_money, format_span
from train.lint.finding import Finding

_INDENT = "  "
_WIDTH = 80
_NAMES = 24  # columns, of the names of metrics
_WIDE = 120  # from this width on, a job takes one line
_OFFERS = 5  # shown
_ORPHANS = 40  # shown
_IMAGE = "image"
_JOBS = 4  # shown, of those that a deletion would lose
_PATHS = 3  # shown, of each job
_DISKS = 4  # shown, those with the least free space


def format_report(event: events.Event, width: int = _WIDTH) -> str:
    """Return the lines of a report with a final newline; empty for other events.

    Args:
        event: The event.
        width: Columns of the terminal. Only tables of jobs use more than 80.
    """
    if isinstance(event, events.JobsListed):
        return _jobs_listed(event, width)
    if isinstance(event, events.JobsCompared):
        return _jobs_compared(event, width)
    words = _REPORTS.get(type(event))
    return words(event) if words else ""


def _quoted(event: events.Quoted) -> str:
    kind = "spot instance" if event.spot else "instance"
    payer = f", project {event.project}" if event.project else ""
    head = f"fleet {event.fleet}: {counted(event.instances, kind)}{payer}"
    if len(event.offers) > 1:
        head += ", all in the first of these zones with capacity"
    shown = event.offers[:_OFFERS]
    columns = [
        Column.of("ZONE", shown, lambda offer: offer.zone),
        Column.of("MACHINE", shown, lambda offer: offer.machine),
        Column.of("USD/H EACH", shown, lambda offer: _price(offer.price_usd_h, 1), right=True),
        Column.of("USD/H ALL", shown, lambda offer: _price(offer.price_usd_h, event.instances), right=True),
    ]
    text = _wrap(head) + _render_table(columns)
    if len(event.offers) > len(shown):
        text += f"{_INDENT}and {len(event.offers) - len(shown)} more\n"
    priced = "spot prices" if event.spot else "on-demand prices"
    dated = f", estimate of {event.priced_at}" if event.priced_at else ", an estimate"
    dated += f" from {event.price_source}" if event.price_source else ""
    end = "only fleet down deletes them"
    if event.stop_after_s:
        end = f"each powers off {format_span(event.stop_after_s)} after its start; its disk is paid until fleet down"
    elif event.delete_after_s:
        end = f"each is deleted automatically {format_span(event.delete_after_s)} after its start"
    return (
        text
        + _wrap(f"{priced}{dated}, with disks and addresses, without network traffic; {end}")
        + _limit(event)
        + "".join(map(_wrap, event.notes))
    )


def _limit(event: events.Quoted) -> str:
    """Describe the limit of the cost, and how much of it the instances of the first offer use."""
    if not event.max_cost_usd or not event.offers:
        return ""
    most = (event.offers[0].price_usd_h or 0.0) * event.instances * event.delete_after_s / 3600
    used = f", after {format_money(event.used_usd)} for the other instances" if event.used_usd else ""
    return _wrap(f"limit {format_money(event.max_cost_usd)}: at most {format_money(most)} for these{used}")


def _price(usd_h: float | None, count: int) -> str:
    return "unknown" if usd_h is None else f"{usd_h * count:,.3f}"


def _orphans_found(event: events.OrphansFound) -> str:
    if not event.orphans:
        return "no orphaned resources found\n"
    shown = event.orphans[:_ORPHANS]
    columns = [
        Column.of("KIND", shown, lambda orphan: orphan.kind),
        Column.of("NAME", shown, lambda orphan: orphan.name, limit=32),
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
    text = _wrap(f"{' and '.join(counts)}:") + _render_table(columns)
    if len(event.orphans) > len(shown):
        text += f"{_INDENT}and {len(event.orphans) - len(shown)} more\n"
    others = sum(not orphan.to_delete for orphan in event.orphans if orphan.kind != _IMAGE)
    if others:
        text += _wrap(f"{others} owned by other users; --all includes them")
    kept = sum(not image.to_delete for image in images)
    if kept:
        text += _wrap(f"{counted(kept, 'image')} kept; --images deletes yours, with --all those of other users, too")
    return text


def _usd_month(orphan: events.Orphan) -> str:
    return format_money(orphan.price_usd_h * HOURS_PER_MONTH) if orphan.size_gb else ""


def _age(began_at: float) -> str:
    return format_span(time.time() - began_at) if began_at else ""


def _checked(event: events.Checked) -> str:
    mark = "unknown" if event.ok is None else "ok" if event.ok else "missing"
    text = _item(mark, f"{event.subject}: {event.message}")
    if event.ok:
        return text
    indent = " " * 9
    hint = _wrap(event.hint, indent, indent) if event.hint else ""
    return text + hint + "".join(f"{indent}{clean(line)}\n" for line in event.next_step.split("\n") if line)


def _item(mark: str, words: str) -> str:
    """Format a status word and a text, wrapped at the width."""
    return _wrap(f"{mark:8} {words}", indent=" " * 9)


def _hosts_checked(event: events.HostsChecked) -> str:
    def column(title: str, text: Callable[[events.HostFacts], str], **layout: Any) -> Column:
        return Column.of(title, event.hosts, lambda host: text(host) if host.python else "", **layout)

    def version(title: str, package: str, rank: int = 0) -> Column:
        return column(title, lambda host: host.versions.get(package, "none"), rank=rank)

    columns = [
        Column.of("HOST", event.hosts, lambda host: host.host),
        Column.of("ADDRESS", event.hosts, lambda host: host.address, rank=5),
        version("PYTHON", "python"),
        version("TENSORFLOW", "tensorflow"),
        version("KERAS", "keras"),
        version("TF-KERAS", "tf_keras", rank=1),
        column("GPUS", _gpus, limit=20),
        column("DISK", lambda host: format_short_size(host.disk_free), rank=2, right=True),
        column("MEMORY", lambda host: format_short_size(host.memory), rank=3, right=True),
        column("ARCH", lambda host: host.machine, rank=4),
    ]
    text = _wrap(f"fleet {event.fleet}: {counted(len(event.hosts), 'host')}") + _render_table(columns)
    text += "".join(_item("warning", words) for words in event.warnings)
    text += "".join(_item("problem", words) for words in event.problems)
    if event.script_fails:
        return text + _item("fails", "hosts are ready, but the script is expected to fail: see `fleet lint`")
    return text + ("" if event.problems else f"{'ok':8} hosts are ready\n")


def _gpus(host: events.HostFacts) -> str:
    return ", ".join(f"{host.gpus.count(name)} x {name}" for name in dict.fromkeys(host.gpus))


def _smoke_tested(event: events.SmokeTested) -> str:
    lines = [line[: _WIDTH - len(_INDENT) - 1] for line in map(clean, event.lines)]
    return _item("ok" if event.ok else "failed", f"{event.host}: {event.message}") + "".join(
        f"{_INDENT} {line}\n" for line in lines
    )


def _scaling_estimated(event: events.ScalingEstimated) -> str:
    spread = f"{_step(event.step_low_s)} to {_step(event.step_high_s)}"
    types = f", {'/'.join(event.gradient_types)}" if event.gradient_types else ""
    source = "slowest connection" if event.network_measured else "assumed"
    facts = [
        ("step alone", f"{_step(event.step_s)} ({spread}, {event.steps} steps on {event.host})"),
        ("gradients", f"{format_size(event.gradient_bytes)}{types}"),
        ("network", f"{event.bandwidth_gbit_s:.3g} Gbit/s, latency {_step(event.latency_s)} ({source})"),
    ]
    if event.together_step_s is not None and event.together_workers is not None:
        facts.append(("together", f"{_step(event.together_step_s)} per step of {event.together_workers} workers"))
    text = _wrap(f"predicted speedup of {event.script} on fleet {event.fleet}, with the same batch per worker:")
    text += "".join(_wrap(f"{_INDENT}{name:12}{words}", indent=" " * 14) for name, words in facts)
    rows = event.predictions
    columns = [
        Column.of("WORKERS", rows, lambda row: str(row.workers), right=True),
        Column.of("STEP", rows, lambda row: _step(row.step_s), right=True),
        Column.of("SPEEDUP", rows, lambda row: f"{row.speedup:.2f}", right=True),
        Column.of("INTERVAL", rows, lambda row: f"{row.speedup_low:.2f} to {row.speedup_high:.2f}", right=True),
        Column.of("EFFICIENCY", rows, lambda row: f"{row.efficiency:.0%}", right=True),
    ]
    text += _render_table(columns) + _item("limit", f"{event.bottleneck}: {event.explanation}")
    return text + "".join(_item("note", words) for words in event.notes)


def _step(seconds: float) -> str:
    """Format the time of a step with three digits: ``52.1 ms``, ``1.2 s``."""
    number, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{number:.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"


def _finding(event: Finding) -> str:
    text = _wrap(f"{event.location}: {event.rule} {event.severity.value}: {event.message}", indent=_INDENT)
    parts = (("why:  ", event.reason), ("fix:  ", event.fix))
    return text + "".join(_wrap(words, _INDENT + label, " " * 8) for label, words in parts if words)


def _wrap(text: str, first: str = "", indent: str = "") -> str:
    """Return a paragraph: the indentation of its first line is `first`, that of the others `indent`."""
    return (
        textwrap.fill(
            clean(text),
            _WIDTH,
            initial_indent=first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _render_table(columns: list[Column]) -> str:
    room = _WIDTH - len(_INDENT)
    lines = arrange_table(choose(columns, room), room)
    return render(((Span(_INDENT), *line) for line in lines), color=False)


def _jobs_listed(event: events.JobsListed, width: int) -> str:
    text = _wrap(f"fleet {event.fleet}: {counted(len(event.jobs), 'job') if event.jobs else 'no job yet'}")
    if event.jobs:
        text += _jobs_table(event.jobs, width)
    shown = sorted(event.disks, key=lambda disk: disk.free)[:_DISKS]
    for disk in shown:
        room = f"{format_size(disk.free)} of {format_size(disk.total)} free on the disk of {disk.host}"
        text += _wrap(f"{_INDENT}{room}, its jobs use {format_size(disk.jobs)}")
    if len(event.disks) > len(shown):
        text += f"{_INDENT}more space is free on {counted(len(event.disks) - len(shown), 'other host')}\n"
    return text + _silent(event.silent)


def _jobs_table(jobs: tuple[events.StoredResults, ...], width: int) -> str:
    """Return a row for each job; in a narrow terminal, a second line has what the columns do not show."""
    room = width - len(_INDENT)
    columns = [
        Column.of("JOB", jobs, lambda job: job.job),
        Column.of("NAME", jobs, lambda job: job.name or "", rank=1, limit=40 if width >= _WIDE else 12),
        Column.of("STATE", jobs, lambda job: job.state or "unknown"),
        Column.of("TIME", jobs, _job_time, right=True),
    ]
    free = 36 if width >= _WIDE else max(16, room - measure_table(columns) - GAP)
    columns.append(Column.of("METRICS", jobs, _metrics, rank=2, limit=free))
    if width < _WIDE:
        header, *rows = arrange_table(choose(columns, room), room)
        lines = [header]
        for row, job in zip(rows, jobs, strict=True):
            lines += [row, (Span(fit(f"{_INDENT}{_program(job)}; {_location(job)}", room), "dim"),)]
    else:
        columns += [
            Column.of("PROGRAM", jobs, _program, rank=1, limit=max(20, width - 120)),
            Column.of("RESULTS", jobs, _location, limit=width // 3),
        ]
        lines = arrange_table(choose(columns, room), room)
    return render(((Span(_INDENT), *line) for line in lines), color=False)


def _jobs_compared(event: events.JobsCompared, width: int) -> str:
    """Return a line for each property, with an asterisk where the jobs differ; long values are wrapped."""
    pairs = list(zip(_properties(event.first), _properties(event.second), strict=True))
    rows = [(name, first, second) for (name, first), (_, second) in pairs]
    rows += _paired(event.first.versions or {}, event.second.versions or {})
    rows += _paired(event.first.metrics or {}, event.second.metrics or {})
    title = max(len(name) for name, _, _ in rows)
    room = (width - len(_INDENT) - title - 2 * GAP) // 2
    text = f"{_INDENT}{'JOB':{title}}  {event.first.job:{room}}  {event.second.job}\n"
    for name, first, second in rows:
        mark = "* " if first != second else _INDENT
        cells = [textwrap.wrap(clean(value), room) or ["-"] for value in (first, second)]
        for at, (left, right) in enumerate(itertools.zip_longest(*cells, fillvalue="")):
            label, start = (name, mark) if at == 0 else ("", _INDENT)
            text += f"{start}{label:{title}}  {left:{room}}  {right}".rstrip() + "\n"
    return text


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


def _metrics(job: events.StoredResults) -> str:
    """Return ``loss 0.3412, accuracy 0.9``: the values for validation first."""
    values = sorted((job.metrics or {}).items(), key=lambda item: not item[0].startswith("val_"))
    return ", ".join(f"{name} {format_metric(value)}" for name, value in values)


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


def _silent(hosts: tuple[str, ...]) -> str:
    if not hosts:
        return ""
    verb, they = ("does", "it holds") if len(hosts) == 1 else ("do", "they hold")
    return _wrap(f"{fold(hosts)} {verb} not answer: it is unknown what {they}")


def _results_at_risk(event: events.ResultsAtRisk) -> str:
    text = ""
    if event.jobs:
        end = "jobs on the hosts will be deleted" if event.pruned else "results exist on the hosts only"
        text += _wrap(f"fleet {event.fleet}: these {end}:")
    text += "".join(_job_at_risk(job) for job in event.jobs[:_JOBS])
    if len(event.jobs) > _JOBS:
        rest = event.jobs[_JOBS:]
        text += f"{_INDENT}and {counted(len(rest), 'more job')}, {format_size(sum(job.size for job in rest))}\n"
    return text + _silent(event.silent)


def _job_at_risk(job: events.StoredResults) -> str:
    age = f", started {_age(job.started_at)} ago" if job.started_at and not job.queued_after else ""
    pulled = {"yes": "pulled, ", "partly": "partly pulled, ", "no": "not pulled, "}.get(job.pulled, "")
    script = f" {job.script}" if job.script else ""
    state = f"queued after job {job.queued_after}" if job.queued_after else job.state or "unknown state"
    text = _wrap(f"job {job.job}{script}: {pulled}{state}{age}, {format_size(job.size)}")
    kinds: dict[str, int] = {}
    for result in job.results:
        kinds[result.kind] = kinds.get(result.kind, 0) + result.size
    if kinds:
        text += _wrap(f"{_INDENT}{', '.join(f'{kind} {format_size(count)}' for kind, count in kinds.items())}")
    if job.pulled in ("no", "partly") and job.directory:
        text += clean(f"{_INDENT}pulled before to {job.directory}") + "\n"
    return text + _first_paths([f"{_INDENT}{path}" for path in job.paths])


def _results_found(event: events.ResultsFound) -> str:
    shown = [result for result in event.results if result.kind != "logs"]
    lines = [
        f"{_INDENT}{format_size(result.size)}, {counted(result.files, 'file')}  {result.host}:{result.path}"
        for result in shown
    ]
    text = f"results: {counted(event.files, 'file')}, {format_size(event.size)}\n"
    deadline = ""
    if event.delete_at:
        at = time.strftime("%Y-%m-%d at %H:%M", time.localtime(event.delete_at))
        deadline = f"{_INDENT}not pulled yet; deleted with the hosts on {at}\n"
    return text + _first_paths(lines) + deadline + f"next:    {clean(event.next_step)}\n"


def _first_paths(lines: list[str]) -> str:
    """Return the first lines with paths, not wrapped, so that they can be copied."""
    more = [f"{_INDENT}and {len(lines) - _PATHS} more places"] if len(lines) > _PATHS + 1 else []
    return "".join(clean(line) + "\n" for line in (lines[:_PATHS] if more else lines) + more)


_REPORTS: dict[type, Callable[[Any], str]] = {
    events.TaskPlanned: format_plan,
    events.Quoted: _quoted,
    events.OrphansFound: _orphans_found,
    events.Checked: _checked,
    events.HostsChecked: _hosts_checked,
    events.SmokeTested: _smoke_tested,
    events.ScalingEstimated: _scaling_estimated,
    Finding: _finding,
    events.ResultsAtRisk: _results_at_risk,
    events.ResultsFound: _results_found,
}
