"""`fleet extend`: let the lifetime of a fleet end later, or earlier."""

from __future__ import annotations

from fleet.cli.application import command
from fleet.cli.options import FLEET, OUTPUT, YES, Output, argument, parse_duration
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import CancelledError, NotReadyError, UnreachableError, UsageError, explain_interrupt
from fleet.events import Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import fleet_opened, running_job
from fleet.fleets.connect import BOOTED, progress_to, reach
from fleet.fleets.instances import list_instances
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, replace_hosts
from fleet.steps import Again, Step
from provision.model import InstanceState
from provision.quantities import counted, format_money, format_span


def run(fleet: str, seconds: float, services: Services, sink: Sink) -> None:
    """Let the lifetime of the fleet end after a new time, in seconds from now.

    Raises:
        UsageError: the time is invalid, or the fleet's lifetime has no end.
        CancelledError: the user declined.
        FleetError: the provider does not change it, or a host does not come back; `fleet up` repairs.
    """
    services.store.need(fleet)
    if seconds <= 0:
        raise UsageError("a lifetime of 0 would end the fleet immediately", next_steps=[Step("down")])
    with services.store.lock(fleet, "extend"):
        directory, record = services.store.need(fleet)
        provider = services.provider(record.spec.options)
        instances = list_instances(fleet, provider, services)
        if len(instances) < record.spec.workers:
            raise NotReadyError(
                f"fleet {fleet!r} has {len(instances)} of its {counted(record.spec.workers, 'instance')}",
                next_steps=[Step("up")],
            )
        if stopped := [each.name for each in instances if each.state is InstanceState.STOPPED]:
            raise NotReadyError(
                f"{', '.join(stopped)} of fleet {fleet!r} {'does' if len(stopped) == 1 else 'do'} not run",
                next_steps=[Step("up")],
            )
        warning = provider.extension_warning(instances, seconds)
        if usd_h := sum(instance.price_usd_h for instance in instances):
            limit = f" of {format_money(limit_usd)}" if (limit_usd := record.spec.options.max_cost_usd) else ""
            text = f"{counted(len(instances), 'instance')} for {format_span(seconds)} from now cost "
            text += f"{format_money(usd_h * seconds / 3600)}; {format_money(directory.cost_usd(services.clock()))}"
            sink.emit(Note(f"{text}{limit} so far"))
        if warning:
            _confirm(warning, record, directory, services)
        directory.intend("extend", seconds=seconds)
        access = Access(record.spec, services, sink)
        with explain_interrupt(
            "fleet extend was interrupted; hosts may be stopped or have their old lifetime", Again({})
        ):
            access.reconcile(make=False)
            provider.extend(instances, seconds, progress_to(sink, "ready", BOOTED))
            instances = list_instances(fleet, provider, services)
            try:
                hosts = reach(record.spec, instances, provider, directory, services, sink)
            except UnreachableError as error:
                raise access.explained(error) from error
            record = replace_hosts(record, hosts, instances)
            directory.write(record)
        sink.emit(fleet_opened(record, directory, services.clock()))


def _confirm(why: str, record: FleetRecord, directory: FleetDirectory, services: Services) -> None:
    job = running_job(record, directory.key, Access(record.spec, services))
    if job and not services.attended:
        raise UsageError(
            f"job {job} is running and might be stopped by this",
            cause=why,
            hint="--yes extends it anyway",
            next_steps=[Again({"--yes": True})],
        )
    if not services.confirm(f"{why}{f'; the running job {job} would end' if job else ''}. Proceed?"):
        raise CancelledError("nothing was changed", next_steps=[Step("status")])


@command("Fleets")
def extend(
    time: float = argument(..., "TIME", "New lifetime from now, e.g. 4h.", parser=parse_duration),
    yes: bool = YES,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Change the lifetime of a cloud fleet.

    The jobs end TIME from now, with a checkpoint, and the instances power off; with --max-cost, they are deleted.
    The instances are restarted only if TIME ends after the time at which Compute Engine deletes them.

    Examples:
      fleet extend 4h
      fleet extend 1d --fleet vision --yes
    """
    with session(resolve_fleet(fleet), output, yes=yes) as running:
        run(running.fleet, time, running.services, running)
