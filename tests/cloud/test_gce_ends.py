"""Instances that stop by themselves, or with their machine: they keep their disks, and the reason is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.state import Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec, InstanceState
from tests.cloud.histories import QUICK
from tests.emulator import Emulator, lifecycle

NAMES = ("worker-0", "worker-1")
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


def power_off(emulator: Emulator, name: str) -> None:
    emulator.advance(8 * HOUR_S + 1.0)  # the time in the metadata is rounded


def maintain(emulator: Emulator, name: str) -> None:
    [instance] = [each for each in emulator.cloud.instances.values() if each.body["name"] == name]
    with emulator.clock.changed:
        lifecycle.maintain(emulator.cloud, instance)
    emulator.advance(HOUR_S)


@pytest.mark.parametrize(
    ("end", "clause", "stopped"),
    [
        (power_off, "powered off at", 2),
        (maintain, "was stopped for maintenance of its machine at", 1),
        (Emulator.fail_host, "was stopped by an error of its machine at", 1),
    ],
)
def test_an_instance_that_stops_keeps_its_disk_and_starts_again(
    emulator: Emulator, tmp_path: Path, end: Callable[[Emulator, str], None], clause: str, stopped: int
) -> None:
    emulator.reset()
    store = Store(tmp_path)
    store.fleet("demo").create()
    spot = end is Emulator.fail_host  # instances on demand restart then
    cloud = GceOptions(project="proj-1", endpoint=emulator.url, gpu="t4", zones=("us-central1-a",), spot=spot)
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK, emulator.clock.now)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, NAMES, lambda *_: None)
    first, _ = sorted(instance.body["name"] for instance in emulator.cloud.instances.values())
    end(emulator, first)
    emulator.settle()
    instances = provider.list("demo")
    assert [instance.state for instance in instances].count(InstanceState.STOPPED) == stopped
    assert (instances[0].state, instances[0].stop_at, instances[0].delete_at) == (InstanceState.STOPPED, 0.0, 0.0)
    assert clause in provider.termination_reasons("demo", ["worker-0"])["worker-0"]
    assert len(emulator.cloud.disks) == 2
    provider.create(spec, NAMES, lambda *_: None)
    again = provider.list("demo")
    assert [instance.id for instance in again] == [instance.id for instance in instances]
    assert again[0].stop_at - emulator.clock.now() == pytest.approx(8 * HOUR_S, abs=60)
    assert provider.delete_fleet("demo", lambda *_: None) == []
