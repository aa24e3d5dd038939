"""Replacement of lost instances of a rented fleet, by a command and while a job is followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.events import InstanceChanged, Note
from fleet.fleets import repair
from fleet.fleets.agents import ExistingFleet
from fleet.fleets.repair import Repairer, repair_fleet
from fleet.state import FleetRecord
from provision.gce.options import GceOptions
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError
from tests.program import wait_for
from tests.unit.fleet.clouds import World, host

NAMES = ("worker-0", "worker-1", "worker-2")


@pytest.fixture
def fleet(world: World, monkeypatch: pytest.MonkeyPatch) -> ExistingFleet:
    """Return a fleet of three hosts, of which worker-1 is lost; a new host has another address."""
    directory = world.store.fleet("demo")
    directory.create()
    for name in NAMES:
        world.cloud.make("demo", name)
    instances = tuple(world.cloud.instances)
    spec = FleetSpec("demo", "gce", 3, options=GceOptions(spot=True))
    record = FleetRecord(spec, 100.0, tuple(map(host, NAMES)), instances, 1.5, last_job="j")
    directory.write(record)
    del world.cloud.instances[1]
    monkeypatch.setattr(
        repair, "reach", lambda _, new, *__: [replace(host(each.name), address="10.0.0.9") for each in new]
    )
    monkeypatch.setattr(repair, "rejoin", lambda *_: [])
    monkeypatch.setattr(repair, "FIRST_PROBE_S", 0.01)
    monkeypatch.setattr(repair, "LONGEST_PAUSE_S", 0.02)
    return ExistingFleet(record, directory, world.services(), world.sink, "logs")


def notes(world: World) -> list[str]:
    return [event.text for event in world.sink.events if isinstance(event, Note)]


def test_only_lost_instances_are_replaced(world: World, fleet: ExistingFleet) -> None:
    record = repair_fleet(fleet)
    assert world.cloud.calls == ["create"]
    assert notes(world) == ["worker-1 was preempted at 12:03:10; it is being replaced"]
    assert InstanceChanged("worker-1", "ready", done=True) in world.sink.events
    assert [each.address for each in record.hosts] == ["127.0.0.1", "10.0.0.9", "127.0.0.1"]
    assert [each.name for each in record.instances if each not in fleet.record.instances] == ["worker-1"]
    assert fleet.directory.read() == record
    assert [entry["intent"] for entry in fleet.directory.intents()] == ["listed", "create", "listed"]


def test_capacity_is_requested_again_and_reported_once(world: World, fleet: ExistingFleet) -> None:
    world.cloud.failures = [ProviderError(ErrorKind.CAPACITY, "No zone gave 1 instance") for _ in range(3)]
    lost = fleet.record.hosts[1]
    with Repairer(fleet, 60.0) as repairer:
        repairer.lost("worker-1")
        wait_for("a new host", lambda: repairer.where(lost).address == "10.0.0.9")
        repairer.back("worker-1")
    assert world.cloud.calls == ["create"] * 4
    assert [text for text in notes(world) if "retrying" in text] == ["No zone gave 1 instance; retrying in 0 s"]


@pytest.mark.parametrize(
    ("kind", "patience_s", "end"),
    [
        (ErrorKind.CAPACITY, 0.05, "worker-1 could not be replaced within 0.05 s"),
        (ErrorKind.USAGE, 60.0, "lost hosts are not replaced: --max-cost $5.00 is used"),
    ],
)
def test_what_cannot_be_replaced_is_given_up(
    kind: ErrorKind, patience_s: float, end: str, world: World, fleet: ExistingFleet
) -> None:
    world.cloud.failures = [ProviderError(kind, "--max-cost $5.00 is used") for _ in range(1000)]
    with Repairer(fleet, patience_s) as repairer:
        repairer.lost("worker-1")
        wait_for("the end of it", lambda: end in notes(world))
        calls = len(world.cloud.calls)
        repairer.lost("worker-1")  # at each further try to connect
        assert len(world.cloud.calls) == calls
