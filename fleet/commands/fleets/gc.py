"""`fleet gc`: find and delete what fleets left behind of which this computer knows nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fleet.config import caller
from fleet.errors import CancelledError, CredentialsError, FleetError, UsageError
from fleet.events import InstanceChanged, Note, Orphan, OrphansDeleted, OrphansFound, Sink
from fleet.fleets.release import leave, lent
from fleet.ports import Ports
from fleet.providers import LENDERS
from fleet.settings import Settings
from fleet.steps import Again, Step
from fleet.translation import translated
from provision.model import CloudSpec, FleetSpec
from provision.quantities import counted

if TYPE_CHECKING:
    from provision.gce.deletion import Orphan as Thing
    from provision.gce.provider import GceProvider


@dataclass(frozen=True)
class GcRequest:
    """Request of the command.

    Attributes:
        settings: Project and endpoint to look at, of the command line, the environment and fleet.toml.
        only: Look at this project alone; not even at this computer.
        everybody: Delete what others made, too.
    """

    settings: Settings = field(default_factory=Settings)
    only: bool = False
    everybody: bool = False


@dataclass(frozen=True)
class GcSummary:
    """Number of resources that were deleted."""

    deleted: int = 0


def run(request: GcRequest, ports: Ports, sink: Sink) -> GcSummary:
    """List what belongs to no fleet of this computer's, and delete what this user made of it.

    Raises:
        UsageError: there is something to delete, and confirmation requires a terminal.
        CancelledError: the user said no.
        FleetError: nobody can tell what there is, or something could not be deleted.
    """
    places: list[_Local | _Cloud] = [] if request.only else [_Local(ports, name) for name in ("local", *LENDERS)]
    places += _clouds(request, ports, sink)
    found = [orphan for place in places for orphan in place.find()]
    sink.emit(OrphansFound(tuple(found)))
    to_delete = [orphan for orphan in found if orphan.to_delete]
    if not to_delete:
        return GcSummary()
    _ask(len(to_delete), len(found), ports)
    left = [name for place in places for name in place.delete(sink)]
    sink.emit(OrphansDeleted(len(to_delete) - len(left), tuple(left)))
    if left:
        raise FleetError(
            f"{counted(len(left), 'resource')} could not be deleted: {', '.join(left)}", next_steps=[Step("gc")]
        )
    return GcSummary(len(to_delete))


def _ask(to_delete: int, found: int, ports: Ports) -> None:
    if not ports.attended:
        raise UsageError(
            f"{to_delete} of {counted(found, 'resource')} would be deleted, and confirmation requires a terminal",
            next_steps=[Again({"--yes": True})],
        )
    which = "it" if to_delete == found == 1 else "all of them" if to_delete == found else f"{to_delete} of them"
    if not ports.consent(f"Delete {which}?"):
        raise CancelledError("nothing was deleted", next_steps=[Step("status")])


class _Local:
    """Instances of a provider that keeps its records on this computer, whose fleet has no directory."""

    def __init__(self, ports: Ports, provider: str) -> None:
        self._ports = ports
        self._provider = ports.provider(provider)

    def find(self) -> list[Orphan]:
        """Return the orphaned resources."""
        with translated():
            instances = self._provider.list()
        known = self._ports.store.names()  # read after the list: a fleet has its directory before its instances
        return [
            Orphan(
                provider=self._provider.name,
                kind="instance",
                name=f"{one.fleet}-{one.name}",
                fleet=one.fleet,
                owner="",
                user=caller(),
                zone=one.zone,
                created_at=one.created_at,
                price_usd_h=0.0,
                cost_usd=0.0,
                to_delete=True,
            )
            for one in instances
            if one.fleet not in known
        ]

    def delete(self, sink: Sink) -> list[str]:
        """Delete it; names of what is left."""
        left = []
        for fleet in sorted({orphan.fleet for orphan in self.find()}):
            with self._ports.store.lock(fleet, "gc"):
                if self._ports.store.fleet(fleet).exists():
                    continue

                def progress(name: str, step: str, fleet: str = fleet) -> None:
                    sink.emit(InstanceChanged(f"{fleet}-{name}", step, done=step == "deleted"))

                with translated():
                    if self._provider.name in LENDERS:
                        there = self._provider.list(fleet)
                        hosts = lent(FleetSpec(fleet, self._provider.name, len(there)), there, self._provider)
                        leave(hosts, self._ports.store.fleet(fleet).key, sink)
                    left += [f"{fleet}-{name}" for name in self._provider.delete_fleet(fleet, progress)]
        return left


class _Cloud:
    """Things in a project of Compute Engine of which no record here tells.

    Args:
        cloud: The project, and where its API is.
        everybody: Whether what others made is deleted, too.
        needed: Whether it is an error where nobody can look.
        ports: The outside world.
        sink: Takes a note where nobody can look.
    """

    def __init__(self, cloud: CloudSpec, *, everybody: bool, needed: bool, ports: Ports, sink: Sink) -> None:
        self._provider = cast("GceProvider", ports.provider("gce", cloud, keep=False))
        self._owner = ports.store.owner(keep=False)
        self._everybody = everybody
        self._needed = needed
        self._ports = ports
        self._sink = sink
        self._to_delete: list[Thing] = []

    def find(self) -> list[Orphan]:
        """Return the orphaned resources."""
        try:
            with translated():
                things = self._provider.orphans()
        except CredentialsError as error:
            if self._needed:
                raise
            self._sink.emit(Note(f"skipped Compute Engine: {error.message}"))
            return []
        unknown = self._unknown(things)
        mine = {thing.owner for thing in unknown if thing.user == caller()}
        self._to_delete = [thing for thing in unknown if self._everybody or self._is_mine(thing, mine)]
        now = self._ports.clock()
        return [
            Orphan(
                provider="gce",
                kind=thing.kind,
                name=thing.name,
                fleet=thing.fleet,
                owner=thing.owner,
                user=thing.user,
                zone=thing.place,
                created_at=thing.created_at,
                price_usd_h=thing.price_usd_h,
                cost_usd=thing.price_usd_h * max(0.0, now - thing.created_at) / 3600 if thing.created_at else 0.0,
                to_delete=thing in self._to_delete,
            )
            for thing in unknown
        ]

    def delete(self, sink: Sink) -> list[str]:
        """Delete what was found and is to go; names of what is left."""

        def progress(name: str, step: str) -> None:
            sink.emit(InstanceChanged(name, step, done=step == "deleted"))

        to_delete = self._unknown(self._to_delete)  # somebody may have made a fleet of that name meanwhile
        if not to_delete:
            return []
        with translated():
            return list(self._provider.delete_orphans(to_delete, progress))

    def _unknown(self, things: Iterable[Thing]) -> list[Thing]:
        known = self._ports.store.names()
        return [thing for thing in things if thing.owner != self._owner or thing.fleet not in known]

    def _is_mine(self, thing: Thing, mine: set[str]) -> bool:
        """Return True if this user created it; a resource without a label counts as those of the same owner."""
        return thing.user == caller() if thing.user else thing.owner in {self._owner, *mine}


def _clouds(request: GcRequest, ports: Ports, sink: Sink) -> Sequence[_Cloud]:
    """The projects to look at: the one that was named, else those of the fleets that are known, and of the settings.

    Where there is none, the one of the credentials, if there are any.
    """
    settings = request.settings
    named = CloudSpec(project=settings.project or "", endpoint=settings.endpoint or "")
    clouds = [] if request.only else _recorded(ports)
    if request.only or named != CloudSpec():
        clouds.append(named)
    return [
        _Cloud(cloud, everybody=request.everybody, needed=bool(clouds), ports=ports, sink=sink)
        for cloud in dict.fromkeys(clouds or [CloudSpec()])
    ]


def _recorded(ports: Ports) -> list[CloudSpec]:
    """Projects in which fleets of this computer are."""
    found = []
    for name in ports.store.names():
        with contextlib.suppress(FleetError):  # a damaged record
            record = ports.store.fleet(name).read()
            if record is not None and record.spec.cloud is not None:
                found.append(CloudSpec(project=record.spec.cloud.project, endpoint=record.spec.cloud.endpoint))
    return found
