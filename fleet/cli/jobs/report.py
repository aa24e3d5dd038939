"""`fleet report`: write a page about a job."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fleet.cli.application import WithJobs, command
from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, one_job, option
from fleet.cli.rerun import split_train
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Level, Note, ReportWritten, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.pull import copy_named, find_pulled, raise_if_silent
from fleet.jobs.reporting.collection import collect_record
from fleet.jobs.reporting.copying import Collected, store_capsule
from fleet.jobs.reporting.repetition import Words, repeat
from fleet.jobs.results import Survey, survey_job
from fleet.reports.capsule import is_capsule
from fleet.reports.charts import Measure, measure
from fleet.reports.record import LARGEST, JobRecord, decode_record
from fleet.reports.written import SUFFIX, is_page
from fleet.results.target import job_of, read_description
from fleet.services import Services
from fleet.state import TrainCommand
from fleet.steps import Again, Step
from train.agent.files.disk import write_atomic

_TELEMETRY = (".telemetry.jsonl",)


@dataclass(frozen=True)
class ReportRequest:
    """Request of the command.

    Attributes:
        fleet: Name of the fleet.
        job: The job, as in `select_job`.
        to: File of the page, or directory for JOB.html; empty: the current directory.
        directory: Directory of pulled results to describe instead; empty: ask the hosts.
        split: Returns the words of a `fleet train`, as for `repeat`; None: no capsule is written.
    """

    fleet: str
    job: str = ""
    to: str = ""
    directory: str = ""
    split: Callable[[Sequence[str]], Words] | None = None


def run(request: ReportRequest, services: Services, sink: Sink) -> ReportWritten:
    """Write the page of a job, also while it runs, or of pulled results.

    Raises:
        NotFoundError: the fleet or job does not exist.
        UsageError: the file or directory is wrong, or several jobs are meant.
        NotReadyError: the page cannot be written.
        UnreachableError: a host does not answer; the page has what the others have.
    """
    survey: Survey | None = None
    if request.directory and request.job:
        raise UsageError("JOB and --dir exclude each other", next_steps=[Step("report", request.job)])
    if request.to and not request.to.endswith("/"):
        _page_of(request, "JOB")
    results = find_pulled(request.directory, request.job, request.fleet, services)
    if results is not None:
        record, measures = _from_results(results, sink)
        written = _write(_page_of(request, record.job), record, measures)
    else:
        written, survey = _report_hosts(request, services, sink)
    sink.emit(written)
    if survey is not None:
        raise_if_silent(survey)
    return written


def _page_of(request: ReportRequest, job: str) -> Path:
    path = Path(request.to or ".").expanduser().absolute()
    if path.is_dir():
        path /= f"{job}.html"
    elif not path.suffix:
        path = path.with_name(f"{path.name}.html")
    _check_file(path)
    return path


def _report_hosts(request: ReportRequest, services: Services, sink: Sink) -> tuple[ReportWritten, Survey]:
    directory, record = services.store.need(request.fleet)
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_job(request.job, clients, directory, unreached)
        job = stored.select(request.job, request.fleet)
        page = _page_of(request, job.job)
        described = collect_record(job, record, clients, directory.key, services.clock())
        with tempfile.TemporaryDirectory(prefix="fleet-report-") as scratch:
            results = Path(scratch) / job.job
            measures: list[Measure] = []
            try:
                if not copy_named(job, clients, results, _TELEMETRY):
                    sink.emit(Note("the report lacks the telemetry of some hosts", Level.WARNING))
                measures = measure(results, [task.task for task in described.tasks])
            except FleetError as error:
                sink.emit(Note(f"the report has no telemetry: {error.message}", Level.WARNING))
            capsule: Path | None = None
            if request.split is not None:
                collected = Collected(job, clients, directory.key, described, Path(scratch))
                described, capsule = _write_capsule(page, collected, directory.commands(), request.split, sink)
        written = _write(page, described, measures)
        if capsule is not None:
            written = replace(written, capsule=str(capsule), capsule_size=capsule.stat().st_size)
        return written, stored


def _write_capsule(
    page: Path,
    collected: Collected,
    commands: Mapping[str, TrainCommand],
    split: Callable[[Sequence[str]], Words],
    sink: Sink,
) -> tuple[JobRecord, Path | None]:
    """Write the capsule of a job next to its page; return its description, and the capsule if there is one."""
    path = page.with_name(page.name.removesuffix(page.suffix) + SUFFIX)
    job = collected.job.job
    try:
        if path.exists() and not is_capsule(path):
            raise NotReadyError(f"{str(path)!r} exists, and is not a capsule")
        if job not in commands:
            raise NotReadyError(f"job {job} was not started from this computer, so its command is unknown")
        command = commands[job]
        repetition = repeat(command, split(command.options))
        described = store_capsule(path, collected, command, repetition)
    except FleetError as error:
        sink.emit(Note(f"no capsule was written: {error.message}", Level.WARNING))
        return collected.record, None
    for text in repetition.notes:
        sink.emit(Note(text, Level.WARNING))
    return described, path


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
            reason = "" if is_page(path) else "exists, and is not a report"
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
    if reason:
        raise UsageError(f"{str(path)!r} {reason}", next_steps=[Again({"--to": "report.html"})])


def _write(path: Path, record: JobRecord, measures: list[Measure]) -> ReportWritten:
    from fleet.reports.page import render

    page = render(record, measures).encode("utf-8", "replace")
    try:
        write_atomic(str(path), page, 0o644)
    except OSError as error:
        raise NotReadyError(
            f"{str(path)!r} cannot be written: {error.strerror or error}",
            hint="free some space, or choose another file with --to",
        ) from error
    return ReportWritten(job=record.job, page=str(path), size=len(page), fleet=record.fleet or None)


@command("Results", WithJobs)
def report(
    job: JobArgument = "",
    to: Annotated[str, option("--to", "File of the page.", "FILE", default="JOB.html")] = "",
    directory: Annotated[
        str, option("--dir", "Describe the results that fleet pull copied to this directory.", "DIR")
    ] = "",
    capsule: Annotated[
        bool, option("--capsule/--no-capsule", "Write a capsule, from which fleet train repeats the job.")
    ] = True,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Write a page about a job, and a capsule that repeats it.

    The page is one HTML file that works without a network: metrics, step time, and use of resources by worker,
    attempts and faults, the cause of a failure, TF_CONFIG, versions, and costs. The capsule has the command, the
    uploaded files, and the logs; fleet train --from-capsule repeats the job.

    Examples:
      fleet report
      fleet report baseline --to baseline.html
      fleet report --dir results/baseline
    """
    request = ReportRequest(
        fleet=resolve_fleet(fleet),
        job=one_job(job, same_job),
        to=to,
        directory=directory,
        split=split_train if capsule else None,
    )
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink), live=False)
