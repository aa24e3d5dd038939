"""`fleet report`: write a page about a job."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Level, Note, ReportWritten, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.pulls.partial import copy_named, find_pulled
from fleet.jobs.reporting.collection import collect_record
from fleet.jobs.results import survey_job
from fleet.reports.measures import Measure, measure
from fleet.reports.record import LARGEST, JobRecord, decode_record
from fleet.results.target import job_of, read_description
from fleet.services import Services
from fleet.steps import Again, Step
from train.agent.files.disk import write_atomic

_TELEMETRY = (".telemetry.jsonl",)
_MARK = b'<!doctype html>\n<html lang="en">\n'
_GENERATOR = b'<meta name="generator" content="fleet '
_HEAD = 1 << 10  # bytes of a page in which the generator is named


@dataclass(frozen=True)
class ReportRequest:
    """Request of the command.

    Attributes:
        fleet: Name of the fleet.
        job: The job, as in `select_job`.
        to: File of the page; empty: JOB.html in the current directory.
        directory: Directory of pulled results to describe instead; empty: ask the hosts.
    """

    fleet: str
    job: str = ""
    to: str = ""
    directory: str = ""


def run(request: ReportRequest, services: Services, sink: Sink) -> ReportWritten:
    """Write the page of a job, also while it runs, or of pulled results.

    Raises:
        NotFoundError: the fleet or job does not exist.
        UsageError: the file or directory is wrong, or several jobs are meant.
        NotReadyError: the page cannot be written.
        UnreachableError: no host answers.
    """
    if request.directory and request.job:
        raise UsageError("JOB and --dir exclude each other", next_steps=[Step("report", request.job)])
    if request.to:
        _check_file(Path(request.to).expanduser())
    results = find_pulled(request.directory, request.job, request.fleet, services)
    record, measures = _from_results(results, sink) if results is not None else _from_hosts(request, services, sink)
    path = Path(request.to or f"{record.job}.html").expanduser().absolute()
    _check_file(path)
    size = _write(path, record, measures)
    written = ReportWritten(job=record.job, page=str(path), size=size, fleet=record.fleet or None)
    sink.emit(written)
    return written


def _from_hosts(request: ReportRequest, services: Services, sink: Sink) -> tuple[JobRecord, list[Measure]]:
    directory, record = services.store.need(request.fleet)
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_job(request.job, clients, directory, unreached)
        job = stored.select(request.job, request.fleet)
        described = collect_record(job, record, clients, directory.key, services.clock())
        with tempfile.TemporaryDirectory(prefix="fleet-report-") as scratch:
            results = Path(scratch) / job.job
            try:
                is_complete = copy_named(job, clients, results, _TELEMETRY)
            except FleetError as error:
                sink.emit(Note(f"the report has no telemetry: {error.message}", Level.WARNING))
                return described, []
            if not is_complete:
                sink.emit(Note("the report lacks the telemetry of some hosts", Level.WARNING))
            return described, measure(results, [task.task for task in described.tasks])


def _from_results(results: Path, sink: Sink) -> tuple[JobRecord, list[Measure]]:
    data = read_description(results, LARGEST)
    record = JobRecord(job_of(results) or "", "")
    try:
        record = decode_record(data) if data is not None else record
    except ValueError:
        data = None
    if data is None:
        note = "only the telemetry is known: the results were copied by an earlier version, or are damaged"
        sink.emit(Note(note, Level.WARNING))
        record = record._replace(notes=[note])
    return record, measure(results, [task.task for task in record.tasks])


def _check_file(path: Path) -> None:
    """Check that a page can be written to a file; an existing file must be a page of this command.

    Raises:
        UsageError: it cannot.
    """
    reason = ""
    try:
        if path.is_dir():
            reason = "is a directory"
        elif not path.absolute().parent.is_dir():
            reason = "cannot be written: its directory does not exist"
        elif path.exists() or path.is_symlink():
            with path.open("rb") as file:
                head = file.read(_HEAD)
            reason = "" if head.startswith(_MARK) and _GENERATOR in head else "exists, and is not a report"
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
    if reason:
        raise UsageError(f"{str(path)!r} {reason}", next_steps=[Again({"--to": "report.html"})])


def _write(path: Path, record: JobRecord, measures: list[Measure]) -> int:
    from fleet.reports.page import render

    page = render(record, measures).encode("utf-8", "replace")
    try:
        write_atomic(str(path), page, 0o644)
    except OSError as error:
        raise NotReadyError(
            f"{str(path)!r} cannot be written: {error.strerror or error}",
            hint="free some space, or choose another file with --to",
        ) from error
    return len(page)
