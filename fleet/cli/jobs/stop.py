"""`fleet stop`: end the running job on all hosts."""

from __future__ import annotations

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, GRACE, JOB, OUTPUT, SAME_JOB, Output, one_job
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import NotFoundError, explain_interrupt
from fleet.events import Level, Note
from fleet.fleets.agents import newest_reports, stop_everywhere
from fleet.jobs.queue import announce_next, read_reports
from fleet.jobs.results import survey_agents
from fleet.jobs.resume import is_resumable
from fleet.jobs.selection import select_reported
from fleet.remote.fanout import raise_failures
from fleet.steps import Again, Step
from provision.quantities import counted


@command("Jobs", WithJobs)
def stop(
    job: str = JOB, grace: float = GRACE, same_job: str = SAME_JOB, fleet: str = FLEET, output: Output = OUTPUT
) -> None:
    """Stop the running job; keep the fleet.

    Examples:
      fleet stop
      fleet stop --grace 60s
    """
    reference = one_job(job, same_job)
    with session(resolve_fleet(fleet), output) as run:
        existing = run.find_fleet()
        with existing.open_some(existing.record.slots) as (clients, unreached):
            newest = newest_reports(clients, select_reported(reference, run.fleet), existing.record.last_job)
            reports = newest.by_host
            if not reports:
                raise NotFoundError(f"no job has run on fleet {run.fleet!r}", next_steps=[Step("status")])
            stopped_job = next(iter(reports.values())).job
            for text in newest.others:
                run.emit(Note(text, Level.WARNING))
            before = read_reports(clients)
            if any(report.queued_after for report in reports.values()):
                run.note(f"removing job {stopped_job} from the queue")
            elif any(report.alive and report.result is None for report in reports.values()):
                run.note(f"stopping job {stopped_job}: waiting up to {grace:g} s for its tasks to exit")
            with_job = [client for client in clients if client.host.name in reports]
            interrupted = f"fleet stop was interrupted; job {stopped_job} may still run"
            with explain_interrupt(interrupted, Again({}), Step("status")):
                stopped = raise_failures(stop_everywhere(with_job, stopped_job, grace), "stop the job")
            survey = survey_agents(with_job, existing.directory, [stopped_job])
        raise_failures([*unreached, *newest.failed], "stop the job where it may still run")
        if any(answer.running for answer in stopped):
            killed = sum(answer.killed for answer in stopped)
            how = f"; {killed} of {counted(len(stopped), 'task')} had to be killed" if killed else ""
            run.note(f"job {stopped_job} is stopped on all hosts{how}")
        else:
            run.note(f"job {stopped_job} had already ended")
        if is_resumable(survey.find(stopped_job), existing.directory):
            resume = Step("train", "--resume", stopped_job).text(run.fleet)
            run.note(f"to continue from its newest checkpoint: `{resume}`")
        announce_next(before, stopped_job, run.fleet, run)
