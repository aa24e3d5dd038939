"""Replacement of lost instances of a rented fleet, by a command and while a job is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.events import Event, InstanceChanged, Note
from fleet.fleets import repair
from fleet.fleets.repair import ExistingFleet, Repairer, repair_fleet
from fleet.services import Services, wrap_provider
from fleet.state import FleetDirectory, FleetRecord, Store
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Host, Instance, InstanceState, SshAccess
from provision.provider import ErrorKind, Progress, ProviderError
from tests.program import wait_for

SPOT = FleetSpec("demo", "gce", 3, options=GceOptions(spot=True))


def instance(number: int, life: int = 1, state: InstanceState = InstanceState.RUNNING) -> Instance:
    return Instance(f"worker-{number}", "demo", f"{number}{life}", state, "us-central1-a", 0.2, 100.0)


def host(rented: Instance) -> Host:
    return Host(
        rented.name,
        f"10.0.0.{rented.id}",
        22,
        "fleet",
        f"key {rented.id}",
        f"compute.{rented.id}",
        f"10.1.0.{rented.id}",
    )


@dataclass
class Cloud:
    """A provider that creates instances, or raises the next error of `against`."""

    rented_now: list[Instance]
    against: list[ProviderError] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    new_usd_h: float = 0.2

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        return [
            replace(host(rented), address=self.addresses.get(rented.name, host(rented).address))
            for rented in instances
        ]

    def list(self, fleet: str) -> list[Instance]:
        self.calls.append("list")
        return sorted(self.rented_now, key=lambda rented: rented.name)

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        return self.reasons

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        return SshAccess()

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        self.calls.append(f"delete {','.join(rented.id for rented in instances)}")
        self.rented_now = [rented for rented in self.rented_now if rented not in instances]

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        self.calls.append(f"create {','.join(names)}")
        if self.against:
            raise self.against.pop(0)
        for name in names:
            progress(name, "ready")
            self.rented_now = [rented for rented in self.rented_now if rented.name != name] + [
                replace(instance(int(name[-1]), 2), price_usd_h=self.new_usd_h)
            ]


@dataclass
class Story:
    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]


@dataclass
class World:
    cloud: Cloud
    store: Store
    directory: FleetDirectory
    record: FleetRecord
    story: Story
    reached: list[list[str]]
    rejoined: list[tuple[str, ...]]
    services: Any

    @property
    def fleet(self) -> ExistingFleet:
        return ExistingFleet(self.record, self.directory, self.services, "logs")

    def lose(self, *numbers: int) -> None:
        self.cloud.rented_now = [rented for rented in self.cloud.rented_now if int(rented.name[-1]) not in numbers]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    store = Store(tmp_path)
    directory = store.fleet("demo")
    directory.create()
    instances = [instance(number) for number in range(3)]
    record = FleetRecord(SPOT, 100.0, tuple(map(host, instances)), tuple(instances), 0.6, last_job="j")
    directory.write(record)
    cloud = Cloud(instances)
    reached: list[list[str]] = []
    rejoined: list[tuple[str, ...]] = []

    def reach(spec: FleetSpec, instances: Sequence[Instance], *_: object) -> list[Host]:
        reached.append([rented.id for rented in instances])
        return [replace(host(rented), python="/venv/bin/python") for rented in instances]

    def rejoin(record: FleetRecord, *_: object) -> list[str]:
        rejoined.append(tuple(host.address for host in record.hosts))
        return []

    monkeypatch.setattr(repair, "reach", reach)
    monkeypatch.setattr(repair, "rejoin", rejoin)
    monkeypatch.setattr(repair, "FIRST_PROBE_S", 0.01)
    base = Services(store, lambda _: True, clock=lambda: 1000.0)
    services = SimpleNamespace(
        store=store, clock=base.clock, sleep=base.sleep, provider=lambda *_, **__: wrap_provider(cloud)
    )
    return World(cloud, store, directory, record, Story(), reached, rejoined, services)


def test_only_lost_instances_are_replaced(world: World) -> None:
    world.lose(1)
    world.cloud.reasons = {"worker-1": "was preempted at 12:03:10"}
    record = repair_fleet(world.fleet, world.story)
    assert world.cloud.calls == ["list", "create worker-1", "list"]
    assert world.story.notes == ["worker-1 was preempted at 12:03:10; it is being replaced"]
    assert InstanceChanged("worker-1", "ready", done=True) in world.story.events
    assert world.reached == [["12"]]
    assert [member.address for member in record.hosts] == ["10.0.0.01", "10.0.0.12", "10.0.0.21"]
    assert [member.python for member in record.hosts] == ["", "/venv/bin/python", ""]
    assert [rented.id for rented in record.instances] == ["01", "12", "21"]
    assert world.directory.read() == record
    assert world.rejoined == [("10.0.0.01", "10.0.0.12", "10.0.0.21")]
    assert [entry["intent"] for entry in world.directory.intents()] == ["listed", "create", "listed"]


# --- while a job is followed ---------------------------------------------------------------------------------------


def no_capacity() -> ProviderError:
    return ProviderError(ErrorKind.CAPACITY, "No zone gave 1 instance")


def test_capacity_is_requested_again_and_reported_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "LONGEST_PAUSE_S", 0.02)
    world.lose(1)
    world.cloud.against = [no_capacity() for _ in range(3)]
    with Repairer(world.fleet, world.story, 60.0) as repairer:
        repairer.lost("worker-1")
        new = wait_for("a new host", lambda: repairer.where(world.record.hosts[1]) != world.record.hosts[1] or None)
        assert new
        assert repairer.where(world.record.hosts[1]).address == "10.0.0.12"
        repairer.back("worker-1")
    assert world.cloud.calls.count("create worker-1") == 4
    assert [text for text in world.story.notes if "retrying" in text] == ["No zone gave 1 instance; retrying in 0 s"]


def test_what_cannot_be_replaced_is_given_up_in_time(world: World) -> None:
    world.lose(1)
    world.cloud.against = [no_capacity() for _ in range(1000)]
    with Repairer(world.fleet, world.story, 0.05) as repairer:
        repairer.lost("worker-1")
        wait_for("the end of it", lambda: any("could not be replaced within" in text for text in world.story.notes))
        calls = len(world.cloud.calls)
        repairer.lost("worker-1")  # at each further try to connect
        assert len(world.cloud.calls) == calls


def test_a_replacement_that_the_limit_of_the_cost_does_not_pay_for_is_not_tried_again(world: World) -> None:
    world.lose(1)
    world.cloud.against = [ProviderError(ErrorKind.USAGE, "--max-cost $5.00 is used") for _ in range(1000)]
    with Repairer(world.fleet, world.story, 60.0) as repairer:
        repairer.lost("worker-1")
        text = "lost hosts are not replaced: --max-cost $5.00 is used"
        wait_for("the end of it", lambda: text in world.story.notes)
        repairer.lost("worker-1")  # at each further try to connect
    assert world.cloud.calls.count("create worker-1") == 1
    assert not [text for text in world.story.notes if "retrying" in text]
