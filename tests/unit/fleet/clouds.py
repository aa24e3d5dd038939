"""A provider that keeps its instances in memory, and the environment in which verbs use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.events import Event
from fleet.services import Services
from fleet.state import Store
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Host, Instance, InstanceState, Offer, Orphan, Quote
from provision.options import ProviderOptions
from provision.provider import ErrorKind, Progress, Provider, ProviderError

NOW = 1_000_000.0
PRICE_USD_H = 0.5
OFFERS = (Offer("z-a", "n1-standard-4", PRICE_USD_H), Offer("z-b", "n1-standard-4", None))


@dataclass
class Cloud:
    """The contents and the behaviour of a cloud.

    Attributes:
        instances: All instances.
        failures: Errors that the next calls of `create` raise, one each, before they create an instance.
        broken: Error that every call of `create` raises after half of its instances.
        stuck: Instances that no deletion removes.
        things: Resources that `orphans` returns.
        calls: Names of the calls that changed something.
    """

    instances: list[Instance] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    broken: BaseException | None = None
    stuck: set[str] = field(default_factory=set)
    things: list[Orphan] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def make(self, fleet: str, name: str) -> None:
        for at, instance in enumerate(self.instances):
            if (instance.fleet, instance.name, instance.state) == (fleet, name, InstanceState.STOPPED):
                self.instances[at] = replace(instance, state=InstanceState.RUNNING, delete_at=NOW + 8 * 3600)
                return
        number, running = str(len(self.calls) * 100 + len(self.instances)), InstanceState.RUNNING
        made = Instance(name, fleet, number, running, "z-a", PRICE_USD_H, NOW, NOW + 8 * 3600, stopped_usd_h=0.02)
        self.instances.append(made)


class CloudProvider(Provider):
    """A provider that creates and deletes in `cloud`."""

    name = "gce"

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def check(self, spec: FleetSpec) -> None:
        if spec.workers > 8:
            raise ProviderError(ErrorKind.USAGE, "at most 8")

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        return Quote(len(names), OFFERS, priced_at="2026-11-01", delete_after_s=8 * 3600)

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        self.cloud.calls.append("create")
        if self.cloud.failures:
            progress("z-a", "no capacity")
            raise self.cloud.failures.pop(0)
        for name in names:
            self.cloud.make(spec.name, name)
            progress(name, "ready")
            if self.cloud.broken is not None:
                raise self.cloud.broken

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        return [host(instance.name) for instance in instances]

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        self.cloud.calls.append("delete")
        gone = {instance.id for instance in instances} - self.cloud.stuck
        self.cloud.instances = [instance for instance in self.cloud.instances if instance.id not in gone]

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        self.cloud.calls.append("delete_fleet")
        for instance in self.cloud.instances:
            if instance.fleet == fleet:
                progress(instance.name, "deleting")
        kept = [
            instance
            for instance in self.cloud.instances
            if instance.fleet != fleet or instance.name in self.cloud.stuck
        ]
        self.cloud.instances = kept
        return [f"instance {instance.name}" for instance in kept if instance.fleet == fleet]

    def extension_warning(self, instances: Sequence[Instance], seconds: float) -> str:
        return "the cloud may have to restart the instances"

    def stop(self, instances: Sequence[Instance], progress: Progress) -> None:
        self.cloud.calls.append("stop")
        ids = {instance.id for instance in instances} - self.cloud.stuck
        self.cloud.instances = [
            replace(item, state=InstanceState.STOPPED, stopped_at=NOW + 3600, delete_at=0.0)
            if item.id in ids
            else item
            for item in self.cloud.instances
        ]

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        return False

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        return {name: "was preempted at 12:03:10" for name in names if name == "worker-1"}

    def orphans(self) -> list[Orphan]:
        return list(self.cloud.things)

    def delete_orphans(self, orphans: Sequence[Orphan], progress: Progress) -> list[str]:
        self.cloud.calls.append("delete_orphans")
        gone = [orphan for orphan in orphans if orphan.name not in self.cloud.stuck]
        self.cloud.things = [orphan for orphan in self.cloud.things if orphan not in gone]
        for orphan in gone:
            progress(orphan.name, "deleted")
        return [f"{orphan.kind} {orphan.name}" for orphan in orphans if orphan not in gone]

    def list(self, fleet: str | None = None) -> list[Instance]:
        return [instance for instance in self.cloud.instances if fleet in (None, instance.fleet)]


def host(name: str) -> Host:
    return Host(name, "127.0.0.1", 1, "me", "ssh-ed25519 AAAA", f"compute.{name}", "10.0.0.2")


class Kept:
    """A sink that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class World:
    """A user at a terminal or not, with a state directory and a cloud.

    Attributes:
        state: The state directory; it does not exist at first.
        answers: Answers of the user, one for each question; a further question is an error.
        attended: True if a user can answer questions.
        asked: The questions.
        slept: Seconds of each pause.
    """

    state: Path
    cloud: Cloud = field(default_factory=Cloud)
    answers: list[bool] = field(default_factory=list)
    attended: bool = True
    asked: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    sink: Kept = field(default_factory=Kept)

    @property
    def store(self) -> Store:
        return Store(self.state)

    def services(self) -> Services:
        return _Services(
            store=self.store,
            confirm=self._confirm,
            consent=self._confirm,
            attended=self.attended,
            clock=lambda: NOW + 7200,
            sleep=self.slept.append,
            world=self,
        )

    def _confirm(self, question: str) -> bool:
        self.asked.append(question)
        return self.answers.pop(0)


@dataclass(frozen=True)
class _Services(Services):
    world: World | None = None

    def open_provider(self, options: ProviderOptions, *, keep: bool) -> Provider:
        if not isinstance(options, GceOptions):
            return super().open_provider(options, keep=keep)
        assert self.world is not None
        if keep:
            self.store.owner()  # as the real one does
        return CloudProvider(self.world.cloud)
