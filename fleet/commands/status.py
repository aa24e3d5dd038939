"""`fleet status`: the fleets, their hosts, and what runs on them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.config import for_fleet
from fleet.errors import FleetError, NotFoundError
from fleet.ports import Ports
from fleet.state import FleetFolder, FleetRecord
from fleet.status import FleetStatus, HostStatus, JobStatus, TaskStatus
from provision.model import Host
from train.agent.records import Inspect, JobReport, Progress


@dataclass(frozen=True)
class StatusRequest:
    """What the user typed; an empty `fleet` means all."""

    fleet: str = ""


def run(request: StatusRequest, ports: Ports) -> list[FleetStatus]:
    """Ask every host of every fleet; one that does not answer is shown so.

    Raises:
        NotFoundError: there is no such fleet, or none at all.
    """
    if request.fleet and not ports.store.fleet(request.fleet).exists():
        ports.store.need(request.fleet)
    names = [request.fleet] if request.fleet else ports.store.names()
    if not names:
        raise NotFoundError("no fleet is up", next_step="fleet up --workers 2")
    return [_status(name, ports.store.fleet(name)) for name in names]


def _status(name: str, folder: FleetFolder) -> FleetStatus:
    record = folder.read()
    if record is None or not record.ready:
        spec = record.spec if record else None
        reason = for_fleet("`fleet up` has not finished; it repairs when repeated, `fleet down` deletes", name)
        return FleetStatus(name=name, provider=spec.provider if spec else "unknown", hosts=(_unmade(reason),))
    hosts, reports = _ask(record, folder)
    return FleetStatus(
        name=name,
        provider=record.spec.provider,
        hosts=hosts,
        job=_job(reports),
        price_usd_h=record.price_usd_h,
        created_at=record.created_at,
    )


def _unmade(reason: str) -> HostStatus:
    return HostStatus(name="hosts", address="", port=0, reachable=False, reason=reason)


def _ask(record: FleetRecord, folder: FleetFolder) -> tuple[tuple[HostStatus, ...], list[JobReport]]:
    from fleet.remote.channel import open_agent
    from fleet.remote.fanout import fan_out
    from fleet.remote.job import inspect

    def one(host: Host) -> list[JobReport]:
        channel = open_agent(host, folder.key)
        try:
            return inspect(channel, Inspect(1))
        finally:
            channel.connection.close()

    hosts: list[HostStatus] = []
    reports: list[JobReport] = []
    for outcome in fan_out(record.hosts, one):
        found = outcome.value or []
        reports += found
        hosts.append(_host(outcome.host, found[0] if found else None, outcome.error))
    return tuple(hosts), reports


def _host(host: Host, report: JobReport | None, error: FleetError | None) -> HostStatus:
    usage = report.usage if report is not None and report.alive else None
    gpus = [gpu.percent for gpu in usage.gpus] if usage else []
    return HostStatus(
        name=host.name,
        address=host.address,
        port=host.port,
        reachable=error is None,
        reason=error.sentence if error else "",
        cpu_percent=usage.cpu_percent if usage else -1.0,
        memory_bytes=usage.memory_bytes if usage else -1,
        gpu_percent=sum(gpus) / len(gpus) if gpus else -1.0,
    )


def _job(reports: list[JobReport]) -> JobStatus | None:
    newest = max((report.job for report in reports), default="")
    if not newest:
        return None
    mine = [report for report in reports if report.job == newest]
    result = next((report.result for report in mine if report.result is not None), None)
    return JobStatus(
        id=newest,
        script=script_of(mine[0]),
        attempt=max(report.attempt for report in mine),
        started_at=min(report.started_at for report in mine),
        tasks=tuple(_task(report) for report in mine),
        outcome=result.outcome if result else None,
        reason=result.reason if result else "",
        first_task=result.first_task if result else "",
        ended_at=result.at if result else 0.0,
    )


def script_of(report: JobReport) -> str:
    """The script of a job: what follows the interpreter."""
    return report.command[1] if len(report.command) > 1 else ""


def _task(report: JobReport) -> TaskStatus:
    progress = report.progress or Progress(report.task, report.attempt, 0.0)
    return TaskStatus(
        task=report.task,
        phase=report.phase,
        alive=report.alive,
        exit=report.exit,
        epoch=progress.epoch,
        epochs=progress.epochs,
        step=progress.step,
        steps=progress.steps,
        metrics=progress.metrics,
        steps_per_s=progress.steps_per_s,
    )
