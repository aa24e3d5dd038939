"""Ask the hosts of a fleet about themselves and their newest job, for `fleet status`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from threading import Thread

from fleet.errors import DamagedStateError, FleetError
from fleet.events import (
    UNREADY,
    DiskUse,
    FleetStatus,
    HostStatus,
    JobStatus,
    Phase,
    StoredStatus,
    TaskStatus,
    find_awaited,
)
from fleet.fleets.access import Access
from fleet.fleets.agents import call_each, description, latest_attempt, newer_jobs, newest_job, opened
from fleet.fleets.instances import list_instances
from fleet.jobs.evidence import first_cause
from fleet.jobs.results import agreement_of, result_of, survey, survey_agents
from fleet.jobs.tasks import independence_warning, joining_hosts
from fleet.remote.fanout import errors_by_host, values_of
from fleet.remote.publication import publish
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from provision.model import Host, Instance, InstanceState
from train.agent.protocol.cluster import task_rank
from train.agent.protocol.records import Inspect, JobReport

_Answer = tuple[FleetStatus, DamagedStateError | None]


def inspect_fleets(
    names: Sequence[str], services: Services
) -> tuple[tuple[FleetStatus, ...], tuple[DamagedStateError, ...]]:
    """Ask the hosts of several fleets at the same time.

    Returns:
        The state of each fleet, in the order of `names`, and the errors of those whose files are damaged.
    """
    answers: list[Future[_Answer]] = [Future() for _ in names]
    for name, answer in zip(names[1:], answers[1:], strict=True):  # after Ctrl-C, nothing waits for these threads
        Thread(target=_answer, args=(answer, name, services), name=f"status-{name}", daemon=True).start()
    _answer(answers[0], names[0], services)
    results = [answer.result() for answer in answers]
    return tuple(status for status, _ in results), tuple(error for _, error in results if error)


def _answer(answer: Future[_Answer], name: str, services: Services) -> None:
    try:
        answer.set_result((_fleet_status(name, services.store.fleet(name), services), None))
    except DamagedStateError as error:
        hosts = (_unready_host(error.message),)
        answer.set_result((FleetStatus(name=name, provider="unknown", hosts=hosts), error))
    except Exception as error:  # noqa: BLE001 - raised by the thread that reads the answer
        answer.set_exception(error)


def _fleet_status(name: str, directory: FleetDirectory, services: Services) -> FleetStatus:
    record, now = directory.read(), services.clock()
    cost_usd = directory.cost_usd(now)
    if record is None:
        return FleetStatus(name, "unknown", (_unready_host(_describe_unfinished(name, record)),), cost_usd=cost_usd)
    status = FleetStatus(name, record.spec.provider, cost_usd=cost_usd, max_cost_usd=record.spec.options.max_cost_usd)
    if not record.ready:
        unready = _unready_host(_describe_unfinished(name, record))
        return status._replace(hosts=(unready,), price_usd_h=record.price_usd_h)
    status = status._replace(created_at=record.created_at)
    if record.stopped_at or _has_powered_off(record, services):
        return _add_stopped(status, record, services)
    hosts, job, stored = inspect_hosts(record, directory, Access(record.spec, services))
    hosts, now = _add_reasons(hosts, record, services), services.clock()
    return status._replace(
        hosts=hosts,
        job=job,
        price_usd_h=directory.price_usd_h(now),
        cost_usd=directory.cost_usd(now),
        delete_at=record.delete_at,
        stop_at=record.stop_at,
        stored=tuple(sorted(stored, key=lambda entry: entry.size, reverse=True)),
    )


def _has_powered_off(record: FleetRecord, services: Services) -> bool:
    """Return whether the lifetime of a fleet is over, and its provider reports that all instances are stopped."""
    if not 0 < record.stop_at < services.clock():
        return False
    with contextlib.suppress(FleetError):
        instances = list_instances(record.spec.name, services.provider(record.spec.options), services)
        return bool(instances) and all(instance.state is InstanceState.STOPPED for instance in instances)
    return False


def _add_stopped(status: FleetStatus, record: FleetRecord, services: Services) -> FleetStatus:
    """Add the state of a stopped fleet, whose instances the provider reports; if it does not, as recorded."""
    instances = list(record.instances)
    with contextlib.suppress(FleetError):
        instances = list_instances(status.name, services.provider(record.spec.options), services)
    by_name = {instance.name: instance for instance in instances}
    return status._replace(
        hosts=tuple(_stopped_host(host, by_name.get(host.name), status.name) for host in record.hosts),
        price_usd_h=sum(instance.current_usd_h for instance in instances),
        cost_usd=services.store.fleet(status.name).cost_usd(services.clock()),
        delete_at=min((instance.delete_at for instance in instances if instance.delete_at), default=0.0),
        stopped_at=record.stopped_at or record.stop_at,
    )


def _stopped_host(host: Host, instance: Instance | None, fleet: str) -> HostStatus:
    if instance is None:
        return HostStatus(host.name, host.address, host.port, reachable=False, reason=f"{host.name} is gone")
    if instance.state is InstanceState.STOPPED:
        return HostStatus(host.name, host.address, host.port, reachable=False, stopped=True)
    stop, start = Step("down", "--keep-disks").text(fleet), Step("up").text(fleet)
    reason = f"{host.name} is {instance.state.value}; stop it with `{stop}`, or start the fleet with `{start}`"
    return HostStatus(host.name, host.address, host.port, reachable=False, reason=reason)


def _add_reasons(hosts: tuple[HostStatus, ...], record: FleetRecord, services: Services) -> tuple[HostStatus, ...]:
    """Return `hosts`; hosts that do not answer get the provider's reason, if it has one.

    Their price counts until the provider ended them: it is asked for the instances.
    """
    silent = [host.name for host in hosts if not host.reachable]
    if not silent or not record.spec.options.rents:
        return hosts
    try:
        provider = services.provider(record.spec.options)
        list_instances(record.spec.name, provider, services)
        reasons = provider.termination_reasons(record.spec.name, silent)
    except FleetError as error:
        unknown = f"the state of its instance is unknown: {error.message}"
        return tuple(host if host.reachable else host._replace(reason=f"{host.reason}; {unknown}") for host in hosts)
    repair = Step("up").text(record.spec.name)
    return tuple(
        host._replace(reason=f"{host.name} {reasons[host.name]}; start or replace it with `{repair}`")
        if host.name in reasons
        else host
        for host in hosts
    )


def _describe_unfinished(fleet: str, record: FleetRecord | None) -> str:
    """Return that `fleet up` has not finished, with the instances that it kept and the commands to continue."""
    kept = ""
    if record is not None and record.kept_until:
        at = time.strftime("%H:%M", time.localtime(record.kept_until))
        kept = f", and {', '.join(record.kept)} {'runs' if len(record.kept) == 1 else 'run'} until {at}"
    again, delete = Step("up").text(fleet), Step("down").text(fleet)
    return f"fleet up has not finished{kept}; repeat `{again}`, or delete it with `{delete}`"


def _unready_host(reason: str) -> HostStatus:
    """Return what is shown instead of the hosts of a fleet that cannot be used."""
    return HostStatus(name=UNREADY, address="", port=0, reachable=False, reason=reason)


def inspect_hosts(
    record: FleetRecord, directory: FleetDirectory, access: Access
) -> tuple[tuple[HostStatus, ...], JobStatus | None, list[StoredStatus]]:
    """Ask the hosts about themselves, the newest job, and what they store, each within a deadline."""
    with opened(record.slots, directory.key, access) as opening:
        clients = values_of(opening)
        answers = call_each(clients, lambda client: client.inspect(Inspect(1)))
        errors = {**errors_by_host(opening), **errors_by_host(answers)}
        reports = {answer.host.name: answer.value[0] for answer in answers if answer.value}
        job = job_status(list(reports.values()), record.last_job)
        if job is not None:
            mine = {name: report for name, report in reports.items() if report.job == job.id}
            able = [client for client in clients if client.host.name in mine]
            result = result_of(list(mine.values()))
            members = description(list(mine.values())).members
            job = job._replace(verdict=first_cause(members, result, able) if result else None)
        # With several tasks per host, the agent of one slot does not see all that the host stores.
        stored = survey(record.hosts, directory) if record.tasks_per_host > 1 else survey_agents(clients, directory)
    disks = {disk.host: disk for disk in stored.disks}
    count, slots = record.tasks_per_host, [slot.name for slot in record.slots]
    hosts = tuple(
        _host_status(host, slots[at * count : (at + 1) * count], reports, errors, disks.get(host.name))
        for at, host in enumerate(record.hosts)
    )
    summaries = [entry.summary() for entry in stored.jobs]
    return hosts, job, [StoredStatus(entry.job, entry.size, entry.pulled, entry.queued_after) for entry in summaries]


def _host_status(
    host: Host,
    slots: Sequence[str],
    reports: Mapping[str, JobReport],
    errors: Mapping[str, FleetError],
    disk: DiskUse | None,
) -> HostStatus:
    alive = [reports[slot] for slot in slots if slot in reports and reports[slot].alive]
    usages = [report.usage for report in alive if report.usage is not None]
    gpus = [gpu.percent for usage in usages[:1] for gpu in usage.gpus]  # each task reports all GPUs of its host
    error = next((errors[slot] for slot in slots if slot in errors), None)
    status = HostStatus(
        name=host.name,
        address=host.address,
        port=host.port,
        reachable=error is None,
        reason=": ".join(filter(None, (error.message, error.cause))) if error else "",
        cpu_percent=sum(usage.cpu_percent for usage in usages) if usages else -1.0,
        memory_bytes=sum(usage.memory_bytes for usage in usages) if usages else -1,
        gpu_percent=sum(gpus) / len(gpus) if gpus else -1.0,
    )
    return status._replace(disk_free=disk.free, disk_total=disk.total, jobs_size=disk.jobs) if disk else status


def job_status(reports: list[JobReport], last_job: str) -> JobStatus | None:
    """Return the state of the newest job according to its agents; None without a job."""
    newest = newest_job([report.job for report in reports], last_job)
    if not newest:
        return None
    mine = [report for report in reports if report.job == newest]
    result, disputes = agreement_of(mine)
    first = description(mine)
    is_complete = len(mine) >= len(first.members)
    warnings = [*newer_jobs({report.slot: report.job for report in reports}, newest), *disputes]
    if result is not None and is_complete:  # else it is unknown whether tasks trained alone
        last = [report for report in mine if report.task and report.attempt == result.attempt]
        warnings.append(independence_warning(result, [(report.task, report.listened) for report in last]))
    tasks = tuple(sorted(map(publish, mine), key=_rank))
    held = [task for task in tasks if task.alive and task.task]
    running = {task.task: task.progress for task in held if task.phase is Phase.RUNNING}
    attempt = latest_attempt(mine, first.attempts)
    return JobStatus(
        id=newest,
        script=first.name,
        name=first.job_name or None,
        attempt=attempt,
        started_at=min(report.started_at for report in mine),
        tasks=tasks,
        result=publish(result),
        attempts=first.attempts,
        waits=result is None and bool(held) and all(task.phase is Phase.EXITED for task in held),
        queued_after=next((report.queued_after for report in mine if report.queued_after), None),
        warning="; ".join(filter(None, warnings)),
        awaited=find_awaited(running, attempt) if result is None and is_complete else None,
        max_workers=first.max_workers,
        joining=() if result is not None else joining_hosts(first, mine),
    )


def _rank(task: TaskStatus) -> tuple[bool, tuple[int, int]]:
    return not task.task, task_rank(task.task or task.slot)
