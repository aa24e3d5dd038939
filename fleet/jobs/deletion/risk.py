"""Find the results that the deletion of hosts would lose, and ask before they are deleted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fleet.errors import CancelledError, NotReadyError, UsageError
from fleet.events import ResultsAtRisk, Sink
from fleet.fleets.access import Access
from fleet.jobs.results import StoredJobs, Survey, result_locations, survey
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import NextStep, Step
from provision.model import Instance, InstanceState

_MANY = 2  # jobs, for which one command is suggested


def survey_present(
    record: FleetRecord, directory: FleetDirectory, instances: Sequence[Instance], access: Access
) -> Survey:
    """Ask the hosts of a fleet whose instances exist for their results: a deleted instance has none.

    The deletion of an instance was confirmed before it began, so one whose deletion was interrupted is not asked.
    A stopped instance cannot answer; it counts as silent, unless all of its results were on this computer when
    `fleet down --keep-disks` stopped it.
    """
    states = {instance.name: instance.state for instance in instances if instance.has_data}
    hosts = tuple(host for host in record.hosts if host.name in states)
    if not record.spec.options.remote:
        return survey(
            replace(record, hosts=tuple(host for host in hosts if _has_files(Path(host.root)))), directory, access
        )
    off = {host.name for host in hosts if states[host.name] is InstanceState.STOPPED}
    stored = survey(replace(record, hosts=tuple(host for host in hosts if host.name not in off)), directory, access)
    holding = off.intersection(record.unsaved) if record.stopped_at else off
    return replace(
        stored,
        silent={**stored.silent, **{name: NotReadyError(f"{name} is stopped") for name in sorted(holding)}},
    )


def _has_files(root: Path) -> bool:
    """Return whether a directory of a host on this computer has files; that of a host without a job is empty."""
    try:
        return any(root.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def results_at_risk(record: FleetRecord, stored: Survey, hosts: Collection[str]) -> ResultsAtRisk:
    """Return the results that the deletion of `hosts` loses, and the running jobs that it ends.

    A host that does not answer may hold results if a job was ever started.

    Args:
        record: The fleet.
        stored: The contents of its hosts.
        hosts: Names of the hosts to delete.
    """
    rented = record.spec.options.rents
    on_hosts = [
        replace(job, tasks=tuple(task for task in job.tasks if task.host.name in hosts)) for job in stored.jobs
    ]
    jobs = [job for job in on_hosts if job.tasks and (job.is_running or not _is_safe(job, rented=rented))]
    silent = tuple(name for name in stored.silent if name in hosts) if record.last_job else ()
    return ResultsAtRisk(record.spec.name, tuple(job.summary(rented=rented) for job in jobs), silent)


def confirm_loss(at_risk: ResultsAtRisk, question: str, again: NextStep, services: Services, sink: Sink) -> None:
    """Show what a deletion would lose, and ask; return at once if that is nothing.

    Args:
        at_risk: The results that would be lost.
        question: The question.
        again: Command that answers it in advance.
        services: The outside world.
        sink: Takes the event.

    Raises:
        UsageError: something would be lost, and confirmation requires a terminal.
        CancelledError: the user declined.
    """
    if not at_risk.jobs and not at_risk.silent:
        return
    sink.emit(at_risk)
    pulls = [Step("pull", job.job) for job in at_risk.jobs if job.pulled in ("no", "partly")]
    pulls = pulls if len(pulls) < _MANY else [Step("pull", "--all")]
    if not services.attended:
        raise UsageError("results would be lost, and confirmation requires a terminal", next_steps=[*pulls, again])
    if not services.consent(question):
        raise CancelledError("nothing was deleted", next_steps=pulls or [Step("status")])


def _is_safe(job: StoredJobs, *, rented: bool) -> bool:
    """Return True if no result of an ended job is lost: external hosts keep those outside the fleet directory."""
    return all(task.safe or not list(result_locations(task, rented=rented)) for task in job.tasks)
