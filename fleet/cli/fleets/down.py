"""`fleet down`: delete a fleet and verify the deletion, or stop it and keep its disks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.cli.application import command
from fleet.cli.options import FLEET, OUTPUT, YES, Output, option
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import CancelledError, FleetError, explain_interrupt
from fleet.events import FleetDown, FleetStopped, Level, Note, ResultsAtRisk, Sink
from fleet.fleets.access import Access, Kept
from fleet.fleets.connect import progress_to
from fleet.fleets.instances import external_hosts, ignore_progress, list_instances, release_hosts
from fleet.fleets.plan import DEFAULT_PROVIDER
from fleet.jobs.deletion import confirm_loss, results_at_risk, stop_fleet, survey_present
from fleet.jobs.pull import pull_ended
from fleet.services import Services, find_options
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from provision import ledger
from provision.model import FleetSpec, Instance
from provision.provider import Provider
from provision.quantities import counted
from provision.registry import make_options


@dataclass(frozen=True)
class DownRequest:
    """Request of the command; with `keep_disks`, the instances are stopped, not deleted."""

    fleet: str
    keep_disks: bool = False


def run(request: DownRequest, services: Services, sink: Sink) -> FleetDown | FleetStopped:
    """Delete all resources of the fleet, list again, and forget the fleet once none is left; or only stop it.

    Raises:
        UsageError: results would be lost or a job would end, and confirmation requires a terminal.
        CancelledError: the user declined, or interrupted; a repeat continues.
        FleetError: something could not be deleted or stopped.
    """
    with services.store.lock(request.fleet, "down"):
        if request.keep_disks:
            return stop_fleet(request.fleet, services, sink)
        kept: Kept = {}
        try:
            return _delete_fleet(request, _without_journal(services, sink), sink, kept)
        finally:
            for client in kept.values():
                client.close()


def _without_journal(services: Services, sink: Sink) -> Services:
    """Return services that warn if the journal cannot be written, for example because the disk is full.

    A deletion is safe without it: a repetition deletes what is left, and `fleet gc` lists it.
    """
    causes: list[str] = []

    def warn(error: FleetError) -> None:
        if error.cause not in causes:
            causes.append(error.cause)
            sink.emit(Note(f"{error.message} ({error.cause}); the deletion continues", Level.WARNING))

    return replace(services, store=replace(services.store, on_unwritten=warn))


def _delete_fleet(request: DownRequest, services: Services, sink: Sink, kept: Kept) -> FleetDown:
    with explain_interrupt("fleet down was interrupted; nothing was deleted", Step("down")):
        directory = services.store.fleet(request.fleet)
        record = _record(directory)
        spec = record.spec if record else _read_journaled_spec(directory)
        provider = services.provider(spec.options)
        instances = list_instances(request.fleet, provider, services)
        billed = directory.intervals() or ledger.intervals([ledger.entry(instances, services.clock())])
        if not instances and not directory.exists():
            sink.emit(Note(f"fleet {request.fleet!r} does not exist: nothing to delete"))
            return FleetDown(request.fleet, (), left=0, cost_usd=0.0, uptime_s=0.0)
        external = spec.options.existing
        access = Access(spec, services, sink, kept if external else None)
        _confirm(request.fleet, record, directory, instances, access, sink)
    silent = _release(access, record, instances, directory, provider, sink) if external else []
    left = _delete_resources(spec, directory, provider, sink)
    if left:
        raise FleetError(
            f"{counted(len(left), 'resource')} could not be deleted: {', '.join(left)}", next_steps=[Step("down")]
        )
    directory.delete()
    bill = _compute_bill(request.fleet, record, instances, billed, services.clock())
    summary = replace(
        bill, left=len(silent), external=external, max_cost_usd=spec.options.max_cost_usd, rented=spec.options.rents
    )
    sink.emit(summary)
    return summary


def _release(
    access: Access,
    record: FleetRecord | None,
    instances: Sequence[Instance],
    directory: FleetDirectory,
    provider: Provider,
    sink: Sink,
) -> list[str]:
    """Delete the fleet's files on existing hosts; return the names of those on which some may be left.

    Raises:
        CancelledError: the user declined to forget these hosts.
    """
    hosts = external_hosts(access.spec, instances, provider) or (record.hosts if record else ())
    silent = release_hosts(hosts, directory.key, sink, record.tasks_per_host if record else 1, access)
    if silent and not access.services.confirm(f"Forget {', '.join(silent)} anyway?"):
        raise CancelledError(
            "the fleet record was kept", hint="repeat the command when all hosts answer", next_steps=[Step("down")]
        )
    return silent


def _delete_resources(spec: FleetSpec, directory: FleetDirectory, provider: Provider, sink: Sink) -> list[str]:
    """Delete the resources; return the names of those that are left."""
    if directory.exists():
        directory.intend("delete_fleet")
    progress = ignore_progress if spec.options.existing else progress_to(sink, "deleted")
    with explain_interrupt("fleet down was interrupted; parts of the fleet may be left", Step("down")):
        return list(provider.delete_fleet(spec.name, progress))


def _compute_bill(
    fleet: str,
    record: FleetRecord | None,
    deleted: Sequence[Instance],
    billed: Sequence[ledger.Interval],
    now: float,
) -> FleetDown:
    """Return what was deleted, and what the fleet cost with the instances that it had before."""
    began = min((interval.start for interval in billed), default=record.created_at if record else now)
    return FleetDown(
        fleet,
        tuple(item.name for item in deleted),
        left=0,
        cost_usd=ledger.cost_usd(billed, now),
        uptime_s=max(0.0, now - began),
    )


def _record(directory: FleetDirectory) -> FleetRecord | None:
    try:
        return directory.read() if directory.exists() else None
    except FleetError:
        return None


def _read_journaled_spec(directory: FleetDirectory) -> FleetSpec:
    """Return the journaled spec of a fleet whose record is lost."""
    for entry in reversed(directory.intents()):
        if provider := str(entry.get("provider") or ""):
            find_options(provider)
            return FleetSpec(
                directory.path.name, provider, 0, options=make_options(provider, entry.get("options") or {})
            )
    return FleetSpec(directory.path.name, DEFAULT_PROVIDER, 0, options=find_options(DEFAULT_PROVIDER)())


def _confirm(
    fleet: str,
    record: FleetRecord | None,
    directory: FleetDirectory,
    instances: Sequence[Instance],
    access: Access,
    sink: Sink,
) -> None:
    """Ask before data is lost: results that are not on this computer, or a running job.

    Raises:
        UsageError: something would be lost, and confirmation requires a terminal.
        CancelledError: the user declined.
    """
    if record is None:
        at_risk = ResultsAtRisk(fleet, (), tuple(instance.name for instance in instances))  # its record is lost
    elif record.ready:
        if not record.stopped_at:
            pull_ended(fleet, access.services, sink)
        elif record.unsaved:
            start, pull = Step("up").text(fleet), Step("pull").text(fleet)
            sink.emit(Note(f"the hosts are stopped; `{start}` starts them again, then `{pull}` copies their results"))
        stored = survey_present(record, directory, instances, access)
        at_risk = results_at_risk(record, stored, [host.name for host in record.hosts])
    else:
        return
    confirm_loss(at_risk, "Delete everything anyway?", Step("down", "--yes"), access.services, sink)


@command("Fleets")
def down(
    keep_disks: bool = option(
        False, "--keep-disks", "Stop the instances and keep their disks; fleet up starts them again."
    ),
    yes: bool = YES,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Delete the fleet and all its files.

    Asks first if a job is running, or if results are not on this computer. Existing hosts are released without any
    files of fleet.

    Examples:
      fleet down
      fleet down --keep-disks
      fleet down --fleet vision --yes
    """
    request = DownRequest(fleet=resolve_fleet(fleet), keep_disks=keep_disks)
    with session(request.fleet, output, yes=yes) as running:
        run(request, running.services, running.sink)
