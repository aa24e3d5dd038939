"""Delete or stop hosts that store results: find what would be lost, and ask before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fleet.errors import CancelledError, NotReadyError, UsageError, explain_interrupt, fold
from fleet.events import FleetStopped, Level, Note, ResultsAtRisk, Sink
from fleet.fleets.agents import ExistingFleet, newest_reports, stop_everywhere
from fleet.fleets.connect import progress_to
from fleet.fleets.instances import list_instances
from fleet.jobs.pull import pull_ended
from fleet.jobs.results import StoredJobs, Survey, result_locations, survey
from fleet.jobs.selection import select_reported
from fleet.remote.fanout import raise_failures
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, replace_hosts
from fleet.steps import Again, NextStep, Step
from provision.model import Instance, InstanceState
from provision.names import index_of, instance_name, is_instance_name
from provision.provider import Provider
from train.defaults import GRACE_S

_MANY = 2  # jobs, for which one command is suggested


def survey_present(fleet: ExistingFleet, instances: Sequence[Instance]) -> Survey:
    """Ask the hosts of a fleet whose instances exist for their results: a deleted instance has none.

    The deletion of an instance was confirmed before it began, so one whose deletion was interrupted is not asked.
    A stopped instance cannot answer; it counts as silent, unless all of its results were on this computer when
    `fleet down --keep-disks` stopped it.
    """
    record = fleet.record
    states = {instance.name: instance.state for instance in instances if instance.has_data}
    on_hosts = [host for host in record.hosts if host.name in states]
    if not record.spec.options.remote:
        on_hosts = [host for host in on_hosts if _has_files(Path(host.root))]
    off = {host.name for host in on_hosts if states[host.name] is InstanceState.STOPPED}
    stored = survey([host for host in on_hosts if host.name not in off], fleet.directory, fleet.access)
    holding = off.intersection(record.unsaved) if record.stopped_at else off
    stopped = {name: NotReadyError(f"{name} is stopped") for name in sorted(holding)}
    return replace(stored, silent={**stored.silent, **stopped})


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
    kept = CancelledError("nothing was deleted", next_steps=pulls or [Step("status")])
    services.require_consent("results would be lost", question, kept, [*pulls, again])


def _is_safe(job: StoredJobs, *, rented: bool) -> bool:
    """Return True if no result of an ended job is lost: external hosts keep those outside the fleet directory."""
    return all(task.safe or not list(result_locations(task, rented=rented)) for task in job.tasks)


def confirm_shrink(fleet: ExistingFleet, workers: int, instances: Sequence[Instance]) -> None:
    """Ask before the hosts after the first `workers` are released, if that loses results; change nothing.

    Raises:
        NotReadyError: a job runs on one of these hosts.
        UsageError: results would be lost, and confirmation requires a terminal.
        CancelledError: the user declined.
    """
    pull_ended(fleet)
    record = fleet.record
    released = [host.name for host in record.hosts[workers:]]
    stored = survey_present(fleet, instances)
    for job in stored.jobs:
        slots = [member.slot for report in job.reports for member in report.members]
        used = {task.host.name for task in job.tasks} | hosts_of(slots, record.tasks_per_host)
        if job.is_running and (busy := [name for name in released if name in used]):
            raise NotReadyError(
                f"job {job.job} runs on {fold(busy)}; the fleet was not changed",
                next_steps=[Step("logs", "-f"), Step("stop")],
            )
    question = f"Delete {fold(released)} anyway?"
    at_risk = results_at_risk(record, stored, released)
    confirm_loss(at_risk, question, Again({"--yes": True}), fleet.services, fleet.sink)


def hosts_of(slots: Iterable[str], tasks_per_host: int) -> set[str]:
    """Return the names of the hosts to which slots belong; invalid names are left out."""
    return {instance_name(index_of(slot) // tasks_per_host) for slot in slots if is_instance_name(slot)}


def stop_fleet(fleet: ExistingFleet) -> None:
    """Stop the jobs and the instances of a fleet; its disks, and all files on them, stay. The caller holds its lock.

    Raises:
        UsageError: its provider cannot do this; or a job runs, and confirmation requires a terminal.
        CancelledError: the user declined, and nothing was changed.
        NotReadyError: no instance is left.
        FleetError: a job or an instance could not be stopped.
    """
    record, directory, services, sink = fleet.record, fleet.directory, fleet.services, fleet.sink
    options = record.spec.options
    if not options.keeps_disks:
        raise UsageError(
            f"--keep-disks: a fleet of provider {record.spec.provider!r} cannot be stopped and started again",
            hint="fleet down without --keep-disks ends it; pull what you need before",
            next_steps=[Step("pull"), Step("down")],
        )
    provider = services.provider(options)
    instances = _present(fleet, provider)
    running = [instance for instance in instances if instance.state is not InstanceState.STOPPED]
    if running:
        if options.lost_at_stop:
            sink.emit(Note(f"{options.lost_at_stop} is lost with the stop", Level.WARNING))
        record = replace(record, unsaved=_end_jobs(fleet, instances), stopped_at=services.clock())
        directory.write(record)
    elif not record.stopped_at:  # they have powered off, or were preempted
        record = replace(record, unsaved=_unsaved(record, survey_present(fleet, instances)))
    _stop_instances(instances, directory, provider, sink)  # other hosts must not start those that have stopped
    instances = _present(fleet, provider)
    if gone := {instance.name for instance in running} - {instance.name for instance in instances}:
        sink.emit(Note(f"deleted by the provider meanwhile, with all files: {fold(gone)}", Level.WARNING))
    if any(instance.state is not InstanceState.STOPPED for instance in instances):  # delayed calls have created them
        _stop_instances(instances, directory, provider, sink)
        instances = _present(fleet, provider)
    stopped_at = record.stopped_at or services.clock()
    record = replace(replace_hosts(record, record.hosts, instances), stopped_at=stopped_at, unsaved=record.unsaved)
    directory.write(record)
    names = tuple(instance.name for instance in instances)
    cost_usd = directory.cost_usd(services.clock())
    sink.emit(FleetStopped(fleet.name, names, record.price_usd_h, cost_usd, options.max_cost_usd))
    start, delete = Step("up").text(fleet.name), Step("down").text(fleet.name)
    sink.emit(Note(f"`{start}` starts it again; `{delete}` deletes it with its disks"))


def _present(fleet: ExistingFleet, provider: Provider) -> list[Instance]:
    """Return the instances of a fleet; a Spot VM that is preempted while it stops may be deleted.

    Raises:
        NotReadyError: there are none.
    """
    instances = list_instances(fleet.name, provider, fleet.services)
    if not instances:
        raise NotReadyError(f"no instance of fleet {fleet.name!r} is left", next_steps=[Step("up"), Step("down")])
    return instances


def _stop_instances(instances: Sequence[Instance], directory: FleetDirectory, provider: Provider, sink: Sink) -> None:
    directory.intend("stop", instances=[[instance.name, instance.id] for instance in instances])
    with explain_interrupt("fleet down was interrupted; instances may still run", Again({}), Step("status")):
        provider.stop(instances, progress_to(sink, "stopped"))


def _end_jobs(fleet: ExistingFleet, instances: Sequence[Instance]) -> tuple[str, ...]:
    """Stop all jobs after asking; return the hosts with results that are not on this computer.

    Args:
        fleet: The fleet.
        instances: All of its instances, also those that are stopped already: their disks may have results, too.
    """
    pull_ended(fleet)
    stored = survey_present(fleet, instances)
    jobs = [job for job in stored.jobs if job.is_running]
    off = {instance.name for instance in instances if instance.state is InstanceState.STOPPED}
    silent = [name for name in stored.silent if fleet.record.last_job and name not in off]
    _confirm(jobs, silent, fleet.services)
    if jobs:
        for job in sorted(jobs, key=lambda job: job.queued_after is None):  # a queued one starts if another one ends
            _stop_job(job, fleet)
        pull_ended(fleet)
        stored = survey_present(fleet, instances)
    return _unsaved(fleet.record, stored)


def _unsaved(record: FleetRecord, stored: Survey) -> tuple[str, ...]:
    """Return the hosts with results that are not on this computer; a stopped one may have some."""
    at_risk = results_at_risk(record, stored, [host.name for host in record.hosts])
    unsafe = {job.job for job in at_risk.jobs}
    holding = {task.host.name for job in stored.jobs if job.job in unsafe for task in job.tasks if not task.safe}
    return tuple(host.name for host in record.hosts if host.name in holding or host.name in at_risk.silent)


def _confirm(jobs: Sequence[StoredJobs], silent: Sequence[str], services: Services) -> None:
    """Ask before a job is stopped, or may be.

    Raises:
        UsageError: confirmation requires a terminal.
        CancelledError: the user declined.
    """
    if not jobs and not silent:
        return
    names = ", ".join(job.job for job in jobs)
    verb = "are" if len(jobs) > 1 else "is"
    words = [f"job {names} {verb} running and would be stopped"] if jobs else []
    if silent:
        words.append(f"{fold(silent)} {'does' if len(silent) == 1 else 'do'} not answer, and may run a job")
    if not services.attended:
        raise UsageError(
            f"{'; '.join(words)}; confirmation requires a terminal",
            hint="--yes stops it; its files stay on the disks",
            next_steps=[Again({"--yes": True}), Step("logs", "-f")],
        )
    if not services.consent(f"{'; '.join(words)}. Files stay on the disks. Proceed?"):
        raise CancelledError("nothing was changed", next_steps=[Step("status")])


def _stop_job(job: StoredJobs, fleet: ExistingFleet) -> None:
    """Stop a job as `fleet stop` does; a host that does not answer has been confirmed."""
    fleet.sink.emit(Note(f"stopping job {job.job}: waiting up to {GRACE_S:g} s for its tasks to exit"))
    with fleet.open_some(fleet.record.slots) as (clients, unreached):
        reports = newest_reports(clients, select_reported(job.job, fleet.name)).by_host
        with_job = [client for client in clients if client.host.name in reports]
        raise_failures(stop_everywhere(with_job, job.job, GRACE_S), "stop the job")
    for outcome in unreached:
        fleet.sink.emit(Note(f"{outcome.host.name} does not answer; its tasks end with the host", Level.WARNING))
