"""`fleet down`: delete a fleet and verify the deletion, or stop it and keep its disks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from fleet.cli.application import command
from fleet.cli.options import FLEET, OUTPUT, YES, Output, option
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import CancelledError, FleetError, explain_interrupt
from fleet.events import FleetDown, Level, Note, ResultsAtRisk, Sink
from fleet.fleets.access import Kept
from fleet.fleets.agents import ExistingFleet
from fleet.fleets.connect import progress_to
from fleet.fleets.instances import external_hosts, ignore_progress, list_instances, release_hosts
from fleet.fleets.plan import DEFAULT_PROVIDER
from fleet.jobs.deletion import confirm_loss, results_at_risk, stop_fleet, survey_present
from fleet.jobs.pull import pull_ended
from fleet.services import Services, find_options
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from provision import ledger
from provision.model import FleetSpec, Host, Instance
from provision.quantities import counted
from provision.registry import make_options


def run(fleet: str, services: Services, sink: Sink, *, keep_disks: bool = False) -> None:
    """Delete all resources of the fleet, list again, and forget the fleet once none is left; or only stop it.

    Raises:
        UsageError: results would be lost or a job would end, and confirmation requires a terminal.
        CancelledError: the user declined, or interrupted; a repeat continues.
        FleetError: something could not be deleted or stopped.
    """
    with services.store.lock(fleet, "down"):
        if keep_disks:
            stop_fleet(ExistingFleet.find(fleet, services, sink, stopped=True))
        else:
            _delete_fleet(fleet, _without_journal(services, sink), sink)


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


def _delete_fleet(name: str, services: Services, sink: Sink) -> None:
    partly = "fleet down was interrupted; parts of the fleet may be left"
    with explain_interrupt("fleet down was interrupted; nothing was deleted", Step("down")):
        directory = services.store.fleet(name)
        record = _record(directory)
        spec = record.spec if record else _read_journaled_spec(directory)
        provider = services.provider(spec.options)
        instances = list_instances(name, provider, services)
        billed = directory.intervals() or ledger.intervals([ledger.entry(instances, services.clock())])
        if not instances and not directory.exists():
            sink.emit(Note(f"fleet {name!r} does not exist: nothing to delete"))
            return
        external, kept, silent = spec.options.existing, Kept(), list[str]()
        stored = record or FleetRecord(spec, services.clock())
        fleet = ExistingFleet(stored, directory, services, sink, kept=kept if external else None)
        try:
            _confirm(fleet, instances, is_lost=record is None)
            if external:
                with explain_interrupt(partly, Step("down")):
                    silent = _release(fleet, external_hosts(spec, instances, provider))
        finally:
            for client in kept.values():
                client.close()
    if directory.exists():
        directory.intend("delete_fleet")
    progress = ignore_progress if external else progress_to(sink, "deleted")
    with explain_interrupt(partly, Step("down")):
        left = provider.delete_fleet(name, progress)
    if left:
        resources = f"{counted(len(left), 'resource')} could not be deleted: {', '.join(left)}"
        raise FleetError(resources, next_steps=[Step("down")])
    directory.delete()
    now = services.clock()
    began = min((interval.start for interval in billed), default=stored.created_at)
    sink.emit(
        FleetDown(
            name,
            tuple(item.name for item in instances),
            left=len(silent),
            cost_usd=ledger.cost_usd(billed, now),
            uptime_s=max(0.0, now - began),
            external=external,
            max_cost_usd=spec.options.max_cost_usd,
            rented=spec.options.rents,
        )
    )


def _record(directory: FleetDirectory) -> FleetRecord | None:
    with contextlib.suppress(FleetError):
        return directory.read() if directory.exists() else None
    return None


def _read_journaled_spec(directory: FleetDirectory) -> FleetSpec:
    """Return the journaled spec of a fleet whose record is lost."""
    journaled = [entry for entry in directory.intents() if entry.get("provider")]
    entry = journaled[-1] if journaled else {}
    provider = str(entry.get("provider", DEFAULT_PROVIDER))
    find_options(provider)
    return FleetSpec(directory.path.name, provider, 0, options=make_options(provider, entry.get("options") or {}))


def _confirm(fleet: ExistingFleet, instances: Sequence[Instance], *, is_lost: bool) -> None:
    """Ask before data is lost: results that are not on this computer, or a running job.

    Args:
        fleet: The fleet.
        instances: Its instances.
        is_lost: Its record is lost, so its results are unknown.

    Raises:
        UsageError: something would be lost, and confirmation requires a terminal.
        CancelledError: the user declined.
    """
    record, name = fleet.record, fleet.name
    if is_lost:
        at_risk = ResultsAtRisk(name, (), tuple(instance.name for instance in instances))
    elif record.ready:
        if not record.stopped_at:
            pull_ended(fleet)
        elif record.unsaved:
            start, pull = Step("up").text(name), Step("pull").text(name)
            text = f"the hosts are stopped; `{start}` starts them again, then `{pull}` copies their results"
            fleet.sink.emit(Note(text))
        at_risk = results_at_risk(record, survey_present(fleet, instances), [host.name for host in record.hosts])
    else:
        return
    confirm_loss(at_risk, "Delete everything anyway?", Step("down", "--yes"), fleet.services, fleet.sink)


def _release(fleet: ExistingFleet, listed: Sequence[Host]) -> list[str]:
    """Delete the fleet's files on existing hosts; return the names of those on which some may be left.

    Raises:
        CancelledError: the user declined to forget these hosts.
    """
    record, key = fleet.record, fleet.directory.key
    silent = release_hosts(listed or record.hosts, key, fleet.sink, record.tasks_per_host, fleet.access)
    if silent and not fleet.services.confirm(f"Forget {', '.join(silent)} anyway?"):
        raise CancelledError(
            "the fleet record was kept", hint="repeat the command when all hosts answer", next_steps=[Step("down")]
        )
    return silent


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
    with session(resolve_fleet(fleet), output, yes=yes) as running:
        run(running.fleet, running.services, running, keep_disks=keep_disks)
