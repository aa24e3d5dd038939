"""Answers that are missing: of calls that may arrive later, and of zones that do not answer."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

import pytest

from fleet.state import FleetRecord, Store
from provision.budget import CREATE
from provision.provider import ErrorKind, ProviderError
from tests.cloud.conftest import Make
from tests.cloud.fuses import DELAY_S, Delayed, Fuse, Killed, arrival, fused
from tests.emulator import Emulator
from tests.program import Program


@pytest.fixture
def store(make: Make, tmp_path: Path) -> Store:
    """Return the state directory of the fleet."""
    assert callable(make)
    return Store(tmp_path / "state")


def create_late(make: Make, number: int, patch: pytest.MonkeyPatch) -> Delayed:
    """Let a program end while one of its creating calls is delayed, which is returned."""
    fuse = Fuse(number, arrives_at=lambda: time.time() + DELAY_S)
    provider, spec = make()
    with fused(fuse, patch), pytest.raises(Killed):
        provider.create(spec, ["worker-0", "worker-1"], lambda *_: None)
    assert len(fuse.delayed.calls) == 1
    fuse.delayed.start()
    return fuse.delayed


@pytest.mark.parametrize("number", [1, 3])  # a firewall rule, and the instances
def test_down_deletes_what_a_delayed_call_creates(
    number: int, emulator: Emulator, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = create_late(make, number, monkeypatch)
    provider, _ = make()
    steps: list[str] = []
    with fused(Fuse(delayed=delayed), monkeypatch):
        assert provider.delete_fleet("demo", lambda _, step: steps.append(step)) == []
    assert delayed.arrived == 1
    emulator.settle()
    state = emulator.state()
    assert (state["instances"], state["disks"], state["firewalls"]) == ([], [], [])
    assert "waiting for calls of an earlier command that may be delayed" in steps


def test_instances_are_stopped_that_a_delayed_call_starts(
    emulator: Emulator, make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, spec = make()
    provider.create(spec, ["worker-0"], lambda *_: None)
    provider.stop(provider.list("demo"), lambda *_: None)
    fuse = Fuse(1, arrives_at=lambda: arrival(store))
    provider, spec = make()
    with fused(fuse, monkeypatch), pytest.raises(Killed):
        provider.create(spec, ["worker-0"], lambda *_: None)
    fuse.delayed.start()
    provider, _ = make()
    with fused(Fuse(delayed=fuse.delayed), monkeypatch):
        provider.stop(provider.list("demo"), lambda *_: None)
    fuse.delayed.arrive()
    emulator.settle()
    [instance] = emulator.cloud.instances.values()
    assert (fuse.delayed.arrived, instance.starts, instance.status) == (1, 2, "TERMINATED")


def test_the_effect_of_a_call_is_unknown_while_its_region_does_not_answer(
    emulator: Emulator, make: Make, store: Store
) -> None:
    call = {"kind": "bulkInsert", "location": "us-central1", "zones": [ZONE], "names": ["worker-0"]}
    store.intend("demo", CREATE, at=time.time() - 3600.0, request_id=str(uuid.uuid4()), **call)
    provider, _ = make()
    emulator.set_outage("us-central1")
    with pytest.raises(ProviderError, match="us-central1 did not answer"):
        provider.list("demo")
    emulator.set_outage()
    assert provider.list("demo") == []


def test_a_call_with_an_answer_has_arrived(emulator: Emulator, make: Make, store: Store) -> None:
    emulator.faults.add("503", match="compute.*bulkInsert", times=0)
    provider, spec = make()
    with pytest.raises(ProviderError):
        provider.create(spec, ["worker-0"], lambda *_: None)
    steps: list[str] = []
    assert provider.delete_fleet("demo", lambda _, step: steps.append(step)) == []
    assert steps == []


def test_an_accepted_call_is_not_forgotten_if_its_operation_cannot_be_read(emulator: Emulator, make: Make) -> None:
    emulator.faults.add("slow-operation", match="compute.instances.bulkInsert", seconds=5)
    emulator.faults.add("403-forbidden", match="compute.zoneOperations.wait")
    provider, spec = make()
    with contextlib.suppress(ProviderError):
        provider.create(spec, ["worker-0", "worker-1"], lambda *_: None)
    provider, _ = make()
    assert provider.delete_fleet("demo", lambda *_: None) == []
    emulator.settle()
    assert (emulator.state()["instances"], emulator.state()["disks"]) == ([], [])


ZONE, OTHER = "us-central1-a", "us-west4-b"
WORKERS = ["worker-0", "worker-1"]


def test_an_instance_in_a_zone_that_does_not_answer_is_neither_missing_nor_deleted(
    emulator: Emulator, make: Make
) -> None:
    provider, spec = make()
    provider.create(spec, WORKERS, lambda *_: None)
    emulator.set_outage(OTHER)
    assert [instance.name for instance in provider.list("demo")] == WORKERS
    emulator.set_outage(ZONE)
    for act in (
        lambda: provider.list("demo"),
        lambda: provider.create(spec, WORKERS, lambda *_: None),
        lambda: provider.delete_fleet("demo", lambda *_: None),
        lambda: provider.termination_reasons("demo", WORKERS),
    ):
        with pytest.raises(
            ProviderError, match=f"{ZONE} did not answer, and may have instances of the fleet"
        ) as caught:
            act()
        assert caught.value.kind is ErrorKind.UNREACHABLE
    assert len(emulator.cloud.instances) == 2
    emulator.set_outage()
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert emulator.cloud.instances == {}


def test_a_fleet_is_created_in_a_zone_that_answers(emulator: Emulator, make: Make) -> None:
    provider, spec = make()
    emulator.set_outage(ZONE)
    with pytest.raises(ProviderError, match=f"{ZONE} did not answer, so it is unknown whether"):
        provider.quote(spec, WORKERS)
    provider, anywhere = make(zones=())
    assert ZONE not in {offer.zone for offer in provider.quote(anywhere, WORKERS).offers}
    provider.create(anywhere, WORKERS, lambda *_: None)
    assert [instance.name for instance in provider.list("demo")] == WORKERS
    assert ZONE not in {zone for zone, _ in emulator.cloud.instances}


def test_down_and_gc_do_not_claim_that_nothing_is_left(
    caller: Program, emulator: Emulator, make: Make, store: Store
) -> None:
    provider, spec = make()
    store.fleet("demo").write(FleetRecord(spec, 1.0))
    provider.create(spec, WORKERS, lambda *_: None)
    caller.env["FLEET_STATE_DIR"] = str(store.root)
    emulator.set_outage(ZONE)
    refused = caller.run("down", "--fleet", "demo", "--yes", code=13)
    assert f"{ZONE} did not answer" in refused.err
    listed = caller.run("gc", "--yes", code=13)
    assert f"{ZONE} did not answer, and may have resources of fleets" in listed.err
    assert len(emulator.cloud.instances) == 2
    emulator.set_outage(OTHER)
    assert "2 instances deleted, 0 left" in caller.run("down", "--fleet", "demo", "--yes").err
    emulator.set_outage()
    caller.run("gc", "--yes")
