"""`fleet report`: write a page about a job."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, JOB, OUTPUT, SAME_JOB, Output, one_job, option
from fleet.cli.rerun import split_train
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Level, Note, ReportWritten, Sink
from fleet.fleets.agents import ExistingFleet
from fleet.jobs.capsules import store_capsule
from fleet.jobs.collection import collect_record, slot_agents
from fleet.jobs.pull import copy_named, find_pulled, raise_if_silent
from fleet.jobs.results import StoredJobs, Survey, survey_job
from fleet.remote.client import AgentClient
from fleet.reports.capsule import is_capsule
from fleet.reports.page import CAPSULE_SUFFIX, Measure, is_page, measure, render
from fleet.reports.record import LARGEST, JobRecord, decode_record
from fleet.results.target import job_of, read_description
from fleet.steps import Again, Step
from train.agent.files.disk import write_atomic

_TELEMETRY = (".telemetry.jsonl",)


def _page_of(to: str, job: str) -> Path:
    """Return the file of the page: `to`, or JOB.html in this directory; an existing file must be such a page.

    Raises:
        UsageError: a page cannot be written there.
    """
    path = Path(to or ".").expanduser().absolute()
    if path.is_dir():
        path /= f"{job}.html"
    elif not path.suffix:
        path = path.with_name(f"{path.name}.html")
    reason = ""
    try:
        if path.is_dir():
            reason = "is a directory"
        elif not path.parent.is_dir():
            reason = "cannot be written: its directory does not exist"
        elif (path.exists() or path.is_symlink()) and not is_page(path):
            reason = "exists, and is not a report"
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
    if reason:
        raise UsageError(f"{str(path)!r} {reason}", next_steps=[Again({"--to": "report.html"})])
    return path


def _report_hosts(
    reference: str, to: str, fleet: ExistingFleet, *, with_capsule: bool
) -> tuple[ReportWritten, Survey]:
    """Write the page of a job that the hosts store, and its capsule."""
    sink = fleet.sink
    with fleet.open_some() as (clients, unreached):
        stored = survey_job(reference, clients, fleet.directory, unreached)
        job = stored.select(reference, fleet.name)
        page = _page_of(to, job.job)
        record = collect_record(job, fleet, clients)
        measures: list[Measure] = []
        with tempfile.TemporaryDirectory(prefix="fleet-report-") as scratch:
            results = Path(scratch) / job.job
            try:
                if not copy_named(job, clients, results, _TELEMETRY):
                    sink.emit(Note("the report lacks the telemetry of some hosts", Level.WARNING))
                measures = measure(results, [task.task for task in record.tasks])
            except FleetError as error:
                sink.emit(Note(f"the report has no telemetry: {error.message}", Level.WARNING))
        capsule: Path | None = None
        if with_capsule:
            with slot_agents(job, clients, fleet.directory.key) as slots:
                record, capsule = _write_capsule(page, job, slots, record, fleet)
        written = _write(page, record, measures)
        if capsule is not None:
            written = written._replace(capsule=str(capsule), capsule_size=capsule.stat().st_size)
        return written, stored


def _write_capsule(
    page: Path, job: StoredJobs, slots: Sequence[AgentClient], record: JobRecord, fleet: ExistingFleet
) -> tuple[JobRecord, Path | None]:
    """Write the capsule of a job next to its page; return its description, and the capsule if there is one."""
    path, commands = page.with_name(page.name.removesuffix(page.suffix) + CAPSULE_SUFFIX), fleet.directory.commands()
    try:
        if path.exists() and not is_capsule(path):
            raise NotReadyError(f"{str(path)!r} exists, and is not a capsule")
        if job.job not in commands:
            raise NotReadyError(f"job {job.job} was not started from this computer, so its command is unknown")
        command = commands[job.job]
        described, notes = store_capsule(path, job, slots, record, command, split_train(command.options))
    except FleetError as error:
        fleet.sink.emit(Note(f"no capsule was written: {error.message}", Level.WARNING))
        return record, None
    for text in notes:
        fleet.sink.emit(Note(text, Level.WARNING))
    return described, path


def _from_results(results: Path, sink: Sink) -> tuple[JobRecord, list[Measure]]:
    data = read_description(results, LARGEST)
    try:
        record = decode_record(data or b"")
    except ValueError:
        note = "only the telemetry is known: the results were copied by an earlier version, or are damaged"
        sink.emit(Note(note, Level.WARNING))
        record = JobRecord(job_of(results) or "", "", notes=[note])
    return record, measure(results, [task.task for task in record.tasks])


def _write(path: Path, record: JobRecord, measures: list[Measure]) -> ReportWritten:
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
    job: str = JOB,
    to: str = option("", "--to", "File of the page.", "FILE", shown="JOB.html"),
    directory: str = option("", "--dir", "Describe the results that fleet pull copied to this directory.", "DIR"),
    capsule: bool = option(
        True, "--capsule/--no-capsule", "Write a capsule, from which fleet train repeats the job."
    ),
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Write a page about a job, and a capsule that repeats it.

    The page is one HTML file that works without a network: metrics, step time, and use of resources by worker,
    attempts and faults, the cause of a failure, TF_CONFIG, versions, and costs. The capsule has the command and
    the uploaded files; fleet train --from-capsule repeats the job.

    Examples:
      fleet report
      fleet report baseline --to baseline.html
      fleet report --dir results/baseline
    """
    reference = one_job(job, same_job)
    with session(resolve_fleet(fleet), output, live=False) as run:
        if directory and reference:
            raise UsageError("JOB and --dir exclude each other", next_steps=[Step("report", reference)])
        if to and not to.endswith("/"):
            _page_of(to, "JOB")  # refused before the hosts are asked
        results = find_pulled(directory, reference, run.fleet, run.services)
        survey: Survey | None = None
        if results is not None:
            record, measures = _from_results(results, run)
            written = _write(_page_of(to, record.job), record, measures)
        else:
            written, survey = _report_hosts(reference, to, run.find_fleet(), with_capsule=capsule)
        run.emit(written)
        if survey is not None:
            raise_if_silent(survey)
