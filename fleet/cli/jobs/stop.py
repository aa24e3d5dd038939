"""`fleet stop`: end the running job on all hosts."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.cli.application import WithJobs, command
from fleet.cli.options import Duration, Fleet, Grace, JobArgument, Output, OutputOption, SameJob, one_job
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import NotFoundError, explain_interrupt
from fleet.events import Level, Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import newest_reports, open_some, stop_everywhere
from fleet.jobs.queue import announce_next, read_reports
from fleet.jobs.resume import resume_step
from fleet.jobs.selection import select_reported
from fleet.remote.fanout import raise_failures
from fleet.services import Services
from fleet.steps import Again, Step
from provision.quantities import counted
from train.defaults import GRACE_S


@dataclass(frozen=True)
class StopRequest:
    """Request of the command; `job` as in `select_job`."""

    fleet: str
    job: str = ""
    grace_s: float = GRACE_S


def run(request: StopRequest, services: Services, sink: Sink) -> None:
    """Stop a job, by default the newest: send TERM, wait for the grace period, send KILL to the remaining processes.

    Raises:
        NotFoundError: the fleet or job does not exist, or the fleet never ran a job.
        FleetError: a host does not answer; the others were stopped.
    """
    directory, record = services.store.need(request.fleet)
    with open_some(record.slots, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        newest = newest_reports(clients, select_reported(request.job, request.fleet), record.last_job)
        reports = newest.by_host
        if not reports:
            raise NotFoundError(f"no job has run on fleet {request.fleet!r}", next_steps=[Step("status")])
        job = next(iter(reports.values())).job
        for text in newest.others:
            sink.emit(Note(text, Level.WARNING))
        before = read_reports(clients)
        if any(report.queued_after for report in reports.values()):
            sink.emit(Note(f"removing job {job} from the queue"))
        elif any(report.alive and report.result is None for report in reports.values()):
            sink.emit(Note(f"stopping job {job}: waiting up to {request.grace_s:g} s for its tasks to exit"))
        with_job = [client for client in clients if client.host.name in reports]
        with explain_interrupt(f"fleet stop was interrupted; job {job} may still run", Again({}), Step("status")):
            stopped = raise_failures(stop_everywhere(with_job, job, request.grace_s), "stop the job")
        step = resume_step(job, with_job, directory)
    running = any(answer.running for answer in stopped)
    killed = sum(answer.killed for answer in stopped)
    raise_failures([*unreached, *newest.failed], "stop the job where it may still run")
    if running:
        how = f"; {killed} of {counted(len(stopped), 'task')} had to be killed" if killed else ""
        sink.emit(Note(f"job {job} is stopped on all hosts{how}"))
    else:
        sink.emit(Note(f"job {job} had already ended"))
    if step is not None:
        sink.emit(Note(f"to continue from its newest checkpoint: `{step.text(request.fleet)}`"))
    announce_next(before, job, request.fleet, sink)


@command("Jobs", WithJobs)
def stop(
    job: JobArgument = "",
    grace: Grace = Duration(GRACE_S),
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Stop the running job; keep the fleet.

    Examples:
      fleet stop
      fleet stop --grace 60s
    """
    request = StopRequest(fleet=resolve_fleet(fleet), job=one_job(job, same_job), grace_s=grace)
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink))
