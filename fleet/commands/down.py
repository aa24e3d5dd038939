"""`fleet down`: delete a fleet, and prove it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import CancelledError, FleetError
from fleet.events import FleetDown, InstanceChanged, Note, Sink
from fleet.ports import Ports
from fleet.providers import translated
from fleet.state import FleetFolder, FleetRecord
from provision.model import Instance
from provision.provider import Provider


@dataclass(frozen=True)
class DownRequest:
    """What the user typed."""

    fleet: str


@dataclass(frozen=True)
class DownSummary:
    """What was deleted."""

    fleet: str
    deleted: tuple[str, ...]


def delete_instances(
    instances: Sequence[Instance], folder: FleetFolder, provider: Provider, sink: Sink
) -> list[Instance]:
    """Delete `instances`, the intent written before; list again.

    Returns:
        Those that are still there.
    """

    def progress(name: str, step: str) -> None:
        sink.emit(InstanceChanged(name, step, done=step == "deleted"))

    if not instances:
        return []
    if folder.exists():
        folder.intend("delete", instances=[[item.name, item.id] for item in instances])
    with translated():
        provider.delete(instances, progress)
    gone = {item.id for item in instances}
    return [item for item in provider.list(instances[0].fleet) if item.id in gone]


def run(request: DownRequest, ports: Ports, sink: Sink) -> DownSummary:
    """Delete the fleet's instances, list again, and forget the fleet once nothing is left.

    Raises:
        CancelledError: the user said no, or interrupted; a repeat goes on.
        FleetError: something could not be deleted.
    """
    with ports.store.lock(request.fleet, "down"):
        return _down(request, ports, sink)


def _down(request: DownRequest, ports: Ports, sink: Sink) -> DownSummary:
    folder = ports.store.fleet(request.fleet)
    record = _record(folder)
    provider = ports.provider(record.spec.provider if record else "local")
    instances = provider.list(request.fleet)
    if not instances and not folder.exists():
        sink.emit(Note(f"there is no fleet {request.fleet!r}: nothing to delete"))
        return DownSummary(request.fleet, ())
    if record is not None and record.ready:
        _ask(record, folder, ports)
    try:
        left = delete_instances(instances, folder, provider, sink)
    except KeyboardInterrupt:
        raise CancelledError(
            "fleet down was interrupted; some of the fleet may be left",
            next_step="fleet down",
        ) from None
    if left:
        raise FleetError(
            f"{len(left)} of {len(instances)} instances are still there: {', '.join(item.name for item in left)}",
            next_step="fleet down",
        )
    folder.delete()
    lived = max(0.0, ports.clock() - record.created_at) if record else 0.0
    cost = record.price_usd_h * lived / 3600 if record else 0.0
    names = tuple(item.name for item in instances)
    sink.emit(FleetDown(request.fleet, names, left=0, cost_usd=cost, lived_s=lived))
    return DownSummary(request.fleet, names)


def _record(folder: FleetFolder) -> FleetRecord | None:
    try:
        return folder.read() if folder.exists() else None
    except FleetError:
        return None


def _ask(record: FleetRecord, folder: FleetFolder, ports: Ports) -> None:
    from fleet.commands.agents import running_job

    job = running_job(record, folder.key)
    if job and not ports.confirm(
        f"Job {job} is running on fleet {record.spec.name!r}; its logs and checkpoints go with the hosts. Proceed?"
    ):
        raise CancelledError("nothing was deleted", next_step="fleet logs -f")
