"""`fleet up`: start a fleet, or repair it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.commands.agents import fleet_opened, open_agents
from fleet.commands.down import delete_instances
from fleet.commands.mend import rejoin
from fleet.config import for_fleet
from fleet.errors import CancelledError, FleetError, UsageError
from fleet.events import HostConnected, InstanceChanged, Note, Sink
from fleet.ports import Ports
from fleet.providers import translated
from fleet.state import FleetFolder, FleetRecord, with_hosts
from provision.model import FleetSpec, Host, Instance, Plan
from provision.planner import conflicts, plan
from provision.provider import Provider

DEFAULT_WORKERS = 2
GPU_TYPES = ("t4", "l4", "p4", "p100", "v100", "a100", "h100")


@dataclass(frozen=True)
class UpRequest:
    """What the user typed; empty or None: not said."""

    fleet: str
    workers: int | None = None
    provider: str = ""
    gpu: str = ""
    python: str = ""


@dataclass(frozen=True)
class UpSummary:
    """The fleet as it is now."""

    fleet: str
    hosts: tuple[Host, ...]
    created: tuple[str, ...]


def check_gpu(text: str) -> None:
    """Refuse a GPU that is unknown, or that no provider of this version has.

    Raises:
        UsageError: always, unless `text` is empty.
    """
    if not text:
        return
    match = re.fullmatch(r"([a-z0-9-]+)(?::([1-9][0-9]*))?", text)
    if match is None or match[1] not in GPU_TYPES:
        raise UsageError(
            f"--gpu {text!r} is no GPU that fleet knows",
            cause=f"known are {', '.join(GPU_TYPES)}, with a number behind a colon for several: t4:2",
            next_step="fleet up --workers 2 --gpu t4",
        )
    raise UsageError(
        f"--gpu {text} needs Google Compute Engine, which this version cannot start yet",
        next_step="leave --gpu out for a fleet on this computer",
    )


def wanted(request: UpRequest, record: FleetRecord | None) -> FleetSpec:
    """The spec that the user means: what was said, else what the fleet already has, else the defaults.

    Raises:
        UsageError: a setting makes no sense, or the fleet is up with another one.
    """
    check_gpu(request.gpu)
    if request.workers is not None and request.workers < 1:
        raise UsageError(
            f"--workers {request.workers}: a fleet has at least one worker", next_step="fleet up --workers 2"
        )
    spec = FleetSpec(
        name=request.fleet,
        provider=request.provider or "local",
        workers=request.workers if request.workers is not None else DEFAULT_WORKERS,
        python=request.python,
    )
    if record is None:
        return spec
    said = replace(
        record.spec,
        workers=request.workers if request.workers is not None else record.spec.workers,
        provider=request.provider or record.spec.provider,
        python=request.python or record.spec.python,
    )
    different = conflicts(said, record.spec)
    if different:
        raise UsageError(
            f"fleet {request.fleet!r} is already up with other settings",
            cause="; ".join(different),
            next_step="fleet down first, or --fleet NAME for another one",
        )
    return said


def run(request: UpRequest, ports: Ports, sink: Sink) -> UpSummary:
    """Bring the fleet to what was asked for, and check that every host answers.

    Raises:
        UsageError: what was asked for makes no sense; nothing was touched.
        FleetError: an instance could not be made or reached. Instances that this call made are deleted again.
        CancelledError: interrupted; likewise.
    """
    folder = ports.store.fleet(request.fleet)
    spec = wanted(request, folder.read() if folder.exists() else None)
    provider = ports.provider(spec.provider)
    with translated():
        provider.check(spec)
    with ports.store.lock(request.fleet, "up"):
        record = folder.read() if folder.exists() else None
        spec = replace(wanted(request, record), public_key=folder.create())
        if record is None:
            record = FleetRecord(spec=spec, created_at=ports.clock())
            folder.write(record)
        return _reconcile(spec, folder, record, provider, sink)


def _reconcile(
    spec: FleetSpec, folder: FleetFolder, record: FleetRecord, provider: Provider, sink: Sink
) -> UpSummary:
    before = provider.list(spec.name)
    steps = plan(spec, before)
    try:
        hosts = _make(spec, steps, folder, provider, sink)
    except (KeyboardInterrupt, FleetError) as error:
        _undo(spec, before, folder, provider, sink)
        if isinstance(error, KeyboardInterrupt):
            raise CancelledError(
                f"fleet up was interrupted; {'what it had made is deleted' if before else 'nothing is left'}",
                next_step=f"fleet up --workers {spec.workers}",
            ) from None
        raise
    price = sum(instance.price_usd_h for instance in provider.list(spec.name))
    record = with_hosts(replace(record, spec=spec), hosts, price)
    folder.write(record)
    _report(record, steps, sink)
    if record.last_job:
        rejoin(record, folder, sink)
    return UpSummary(fleet=spec.name, hosts=tuple(hosts), created=steps.create)


def _make(spec: FleetSpec, steps: Plan, folder: FleetFolder, provider: Provider, sink: Sink) -> list[Host]:
    def progress(instance: str, step: str) -> None:
        sink.emit(InstanceChanged(instance, step, done=step == "ready"))

    with translated():
        if steps.delete:
            folder.intend("delete", instances=[[item.name, item.id] for item in steps.delete])
            provider.delete(steps.delete, progress)
        if steps.create:
            folder.intend("create", instances=list(steps.create))
            provider.create(spec, steps.create, progress)
        hosts = [provider.host(instance) for instance in provider.list(spec.name)]
    with open_agents(hosts, folder.key) as channels:
        for channel in channels:
            sink.emit(HostConnected(channel.connection.host.name, channel.connection.host.address))
    return hosts


def _undo(spec: FleetSpec, before: Sequence[Instance], folder: FleetFolder, provider: Provider, sink: Sink) -> None:
    """Delete what this call made, nothing that was there before; a second Ctrl-C leaves it, and says so."""
    try:
        old = {instance.id for instance in before}
        made = [instance for instance in provider.list(spec.name) if instance.id not in old]
        left = delete_instances(made, folder, provider, sink)
        if not before and not left:
            folder.delete()
    except (KeyboardInterrupt, FleetError) as error:
        names = ", ".join(instance.name for instance in provider.list(spec.name)) or "nothing"
        raise CancelledError(
            f"interrupted again; still there: {names}",
            cause=error.sentence if isinstance(error, FleetError) else "",
            next_step="fleet down",
        ) from None


def _report(record: FleetRecord, steps: Plan, sink: Sink) -> None:
    name = record.spec.name
    sink.emit(fleet_opened(record))
    if not steps.create:
        sink.emit(Note(f"fleet {name!r} was already up; every host answers"))
    sink.emit(Note(for_fleet("next: fleet train task.py", name)))
