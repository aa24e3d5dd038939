"""Instances that stop, restart, or are listed by a wrong clock: they keep their disks, and end at the right time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet.events import Note
from provision.gce import create
from provision.model import InstanceState
from tests.cloud.conftest import Make
from tests.cloud.customer import Customer
from tests.emulator import Emulator, lifecycle

NAMES = ("worker-0", "worker-1")
HOUR_S = 3600.0


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
    emulator: Emulator, make: Make, end: Callable[[Emulator, str], None], clause: str, stopped: int
) -> None:
    spot = end is Emulator.fail_host  # instances on demand restart then
    provider, spec = make(gpu="t4", spot=spot)
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


ONE = ("worker-0",)


def ends(emulator: Emulator) -> list[float]:
    """Return the hours until the jobs of the instance end and until it powers off, by the clock of the cloud."""
    [instance] = emulator.cloud.instances.values()
    items = instance.metadata()
    return [(int(items[key]) - emulator.clock.now()) / HOUR_S for key in ("fleet-end-at", "fleet-stop-at")]


@pytest.mark.parametrize("max_cost_usd", [0.0, 50.0])
@pytest.mark.parametrize("fast_h", [-3, 3])
def test_instances_end_by_the_clock_of_the_cloud(
    emulator: Emulator, make: Make, fast_h: int, max_cost_usd: float
) -> None:
    def clock() -> float:
        return emulator.clock.now() + fast_h * HOUR_S

    options = {"max_duration_s": 8 * 3600, "max_cost_usd": max_cost_usd}
    provider, spec = make(workers=1, clock=clock, **options)
    provider.create(spec, ONE, lambda *_: None)
    stops = not max_cost_usd
    length_h = 8.0 if stops else 8.0 - 1 / 6
    assert ends(emulator)[0] == pytest.approx(length_h, abs=0.01)

    def shown_h() -> float:
        """Return the hours until the instance powers off or is deleted, as the user sees them."""
        [instance] = provider.list("demo")
        return ((instance.stop_at or instance.delete_at) - clock()) / HOUR_S

    assert shown_h() == pytest.approx(8.0, abs=0.01)
    provider.extend(provider.list("demo"), 2 * HOUR_S, lambda *_: None)
    assert shown_h() == pytest.approx(2.0, abs=0.01)
    if stops:
        assert ends(emulator) == pytest.approx([2.0, 2.0], abs=0.01)
        assert provider.stop_at(provider.list("demo"), clock() + 0.5 * HOUR_S)
        assert ends(emulator)[1] == pytest.approx(0.5, abs=0.01)
        emulator.advance(0.6 * HOUR_S)
    else:
        provider.stop(provider.list("demo"), lambda *_: None)
    emulator.settle()
    [instance] = provider.list("demo")
    assert instance.state is InstanceState.STOPPED
    assert instance.stopped_at == pytest.approx(clock(), abs=0.2 * HOUR_S)
    provider.create(spec, ONE, lambda *_: None)
    assert shown_h() == pytest.approx(8.0, abs=0.01)
    assert ends(emulator)[0] == pytest.approx(length_h, abs=0.01)
    assert provider.delete_fleet("demo", lambda *_: None) == []


def begin(emulator: Emulator, status: str) -> None:
    """Let all instances begin to start: by a killed client, by another host, or by Compute Engine itself."""
    for instance in emulator.cloud.instances.values():
        instance.body["status"] = status


def finish(emulator: Emulator) -> None:
    with emulator.cloud.clock.changed:
        for instance in emulator.cloud.instances.values():
            lifecycle.start(emulator.cloud, instance)


@pytest.mark.parametrize(("status", "is_late"), [("STAGING", False), ("REPAIRING", False), ("STAGING", True)])
def test_up_keeps_instances_that_are_being_started_again(
    status: str, is_late: bool, emulator: Emulator, user: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.up()
    user.down(keep_disks=True)
    before = {instance.body["id"] for instance in emulator.cloud.instances.values()}
    user.sleep = lambda _: finish(emulator)
    if is_late:  # after `fleet up` has listed the instances
        create_now = create.create

        def create_late(*arguments: Any) -> None:
            begin(emulator, status)
            emulator.cloud.clock.call_in(0.1, lambda: finish(emulator))
            create_now(*arguments)

        monkeypatch.setattr(create, "create", create_late)
    else:
        begin(emulator, status)
    user.up()
    assert {instance.body["id"] for instance in emulator.cloud.instances.values()} == before
    assert set(user.statuses()) == {"RUNNING"}


def test_up_warns_of_planned_maintenance(emulator: Emulator, user: Customer) -> None:
    user.up(workers=1)
    [instance] = emulator.cloud.instances.values()
    emulator.plan_maintenance(instance.body["name"], 86400.0, 600.0)
    [note] = [note.text for note in user.up(workers=1).of(Note) if "maintenance" in note.text]
    assert note.endswith(": stops worker-0")
