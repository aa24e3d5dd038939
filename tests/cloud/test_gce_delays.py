"""Calls whose answers are missing: they may arrive after the end of their program."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests

from fleet.state import Store
from provision.budget import CREATE, CREATED
from provision.gce import delete
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.fuses import DELAY_S, Delayed, Fuse, Killed, arrival, fused
from tests.cloud.histories import QUICK
from tests.emulator import Emulator

Make = Callable[[], tuple[GceProvider, FleetSpec]]
HOUR_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.fleet("demo").create()
    return store


@pytest.fixture
def make(emulator: Emulator, store: Store) -> Make:
    cloud = GceOptions(project="proj-1", endpoint=emulator.url, zones=("us-central1-a",))
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
    return lambda: (GceProvider(store.owner(), "me", store.journal, cloud, QUICK), spec)


def request(store: Store, at: float) -> None:
    """Write the intent of a program that was killed at a time."""
    call = {"kind": "bulkInsert", "location": "us-central1", "zones": ["us-central1-a"], "names": ["worker-0"]}
    store.journal.intend("demo", CREATE, at=at, request_id=str(uuid.uuid4()), **call)


def create_late(make: Make, number: int, patch: pytest.MonkeyPatch) -> Delayed:
    """Let a program end while one of its creating calls is delayed, which is returned."""
    fuse = Fuse(number, arrives_at=lambda: time.time() + DELAY_S)
    provider, spec = make()
    with fused(fuse, patch), pytest.raises(Killed):
        provider.create(spec, ["worker-0", "worker-1"], lambda *_: None)
    assert len(fuse.delayed.calls) == 1
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


def test_a_call_that_arrives_when_instances_were_deleted_does_not_let_their_disks_wait(
    emulator: Emulator, make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = create_late(make, 3, monkeypatch)
    monkeypatch.setitem(globals(), "QUICK", replace(QUICK, lingering_s=10.0))  # the wait ends when the call arrives
    provider, spec = make()
    provider.create(spec, ["worker-0", "worker-1"], lambda *_: None)
    delete_group = delete._delete_group

    def delete_and_arrive(*arguments: Any) -> None:
        delete_group(*arguments)
        delayed.arrive()

    monkeypatch.setattr(delete, "_delete_group", delete_and_arrive)
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert delayed.arrived == 1
    emulator.settle()
    assert (emulator.state()["instances"], emulator.state()["disks"]) == ([], [])


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
    provider, _ = make()
    with fused(Fuse(delayed=fuse.delayed), monkeypatch):
        provider.stop(provider.list("demo"), lambda *_: None)
    fuse.delayed.arrive()
    emulator.settle()
    [instance] = emulator.cloud.instances.values()
    assert (fuse.delayed.arrived, instance.starts, instance.status) == (1, 2, "TERMINATED")


def test_the_effect_of_a_delayed_call_is_unknown_until_it_cannot_arrive(
    emulator: Emulator, make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = create_late(make, 3, monkeypatch)
    provider, _ = make()
    assert provider.list("demo") == []
    delayed.arrive()
    assert len(provider.list("demo")) == 2
    assert [each["created"] for each in store.journal.intents("demo") if each["intent"] == CREATED] == [None] * 3


def test_the_effect_of_a_call_is_unknown_while_its_region_does_not_answer(
    emulator: Emulator, make: Make, store: Store
) -> None:
    request(store, time.time() - HOUR_S)
    provider, _ = make()
    emulator.set_outage("us-central1")
    with pytest.raises(ProviderError, match="us-central1 did not answer"):
        provider.list("demo")
    emulator.set_outage()
    assert provider.list("demo") == []


def test_a_list_does_not_wait_for_a_call_in_the_future(emulator: Emulator, make: Make, store: Store) -> None:
    request(store, time.time() + HOUR_S)  # the clock was set back since
    provider, _ = make()
    listed = Thread(target=provider.list, args=("demo",), daemon=True)
    listed.start()
    listed.join(90.0)
    assert not listed.is_alive()


def test_a_call_with_an_answer_has_arrived(emulator: Emulator, make: Make, store: Store) -> None:
    emulator.faults.add("503", match="compute.*bulkInsert", times=0)
    provider, spec = make()
    with pytest.raises(ProviderError):
        provider.create(spec, ["worker-0"], lambda *_: None)
    steps: list[str] = []
    assert provider.delete_fleet("demo", lambda _, step: steps.append(step)) == []
    assert steps == []


def test_instances_are_stopped_that_an_earlier_command_is_about_to_start(
    emulator: Emulator, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, spec = make()
    provider.create(spec, ["worker-0"], lambda *_: None)
    provider.stop(provider.list("demo"), lambda *_: None)
    [instance] = emulator.cloud.instances.values()
    monkeypatch.setattr(emulator.cloud.operations, "operation_s", 0.3)
    requests.post(f"{instance.body['selfLink']}/start", timeout=60).raise_for_status()
    provider.stop(provider.list("demo"), lambda *_: None)  # it is still listed as stopped
    emulator.settle()
    assert (instance.starts, instance.status) == (2, "TERMINATED")
    assert provider.delete_fleet("demo", lambda *_: None) == []
