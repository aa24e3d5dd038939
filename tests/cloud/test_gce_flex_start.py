"""Fleets of Flex-start VMs: requests that wait for capacity, and are deleted in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.errors import CapacityError, UsageError
from fleet.events import Event, Quoted, ZoneTried
from fleet.steps import Again
from provision.gce.api.resources import seconds
from provision.model import InstanceState
from tests.cloud.customer import Customer, Quiet
from tests.cloud.fuses import Killed
from tests.next_steps import repetition

ZONE = "us-central1-a"


class Watch(Quiet):
    """A sink that calls a function when instances wait for capacity."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, ZoneTried) and "in the queue" in event.step:
            self._act()


def test_flex_start_vms_are_created_one_by_one(customer: Customer) -> None:
    [quoted] = customer.up(wait_s=3600).of(Quoted)
    assert "Flex-start VMs cost at most the price on demand that is shown" in quoted.notes
    calls = customer.emulator.state()["calls"]
    assert calls["compute.instances.insert"] == 2
    assert not [name for name in calls if "bulkInsert" in name]
    for instance in customer.emulator.cloud.instances.values():
        assert instance.status == "RUNNING"
        assert instance.body["scheduling"]["provisioningModel"] == "FLEX_START"
        assert instance.body["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
        assert instance.blueprint.queue_s == 0  # there was capacity
    customer.up(wait_s=3600)
    assert customer.emulator.state()["calls"]["compute.instances.insert"] == 2
    with pytest.raises(UsageError, match="the deletion time of Flex-start VMs cannot be changed"):
        customer.extend(3600.0)
    customer.down()
    assert customer.held() == []


def test_without_a_queue_the_error_suggests_one_and_other_zones_come_before_it(customer: Customer) -> None:
    customer.emulator.set_capacity(ZONE, 1)
    with pytest.raises(CapacityError) as failure:
        customer.up()
    assert repetition(failure.value) == Again({"--wait": "2h"}, "up")
    assert customer.held() == []
    sink = customer.up(zones=("us-central1",), wait_s=3600)
    assert not [event for event in sink.of(ZoneTried) if "in the queue" in event.step]
    assert customer.zones() == {"us-central1-b"}


def test_the_request_waits_until_there_is_capacity_for_all(customer: Customer) -> None:
    customer.emulator.set_capacity(ZONE, 0)
    seen: list[list[str]] = []

    def free_one() -> None:
        seen.append(customer.statuses())
        customer.emulator.set_capacity(ZONE, len(seen))

    sink = customer.up(Watch(free_one), wait_s=3600)
    assert [event.step.partition(" until")[0] for event in sink.of(ZoneTried) if "queue" in event.step] == [
        "2 instances of 2 in the queue",
        "1 instance of 2 in the queue",
    ]
    assert seen[0] == ["PENDING", "PENDING"]
    assert "PENDING" in seen[1]
    assert customer.statuses() == ["RUNNING", "RUNNING"]


@pytest.mark.parametrize("max_cost_usd", [0.0, 2.0])
def test_jobs_end_before_the_deletion_however_long_the_request_waited(
    customer: Customer, max_cost_usd: float
) -> None:
    customer.emulator.set_capacity(ZONE, 0)

    def free_later() -> None:
        customer.emulator.clock.advance(3000)
        customer.emulator.set_capacity(ZONE, 2)

    customer.up(Watch(free_later), wait_s=7200, max_duration_s=3600, max_cost_usd=max_cost_usd)
    assert ends(customer) == {600}


def kill() -> None:
    raise Killed


@pytest.fixture
def customer(user: Customer) -> Customer:
    """Return a user with a fleet of two Flex-start VMs in one zone."""
    user.options |= {"gpu": "t4", "flex_start": True, "zones": (ZONE,)}
    return user


def ends(customer: Customer) -> set[int]:
    """Return the times from the end of jobs to the deletion of the instances, in seconds."""
    return {
        round(seconds(instance.body["resourceStatus"]["scheduling"]["terminationTimestamp"]))
        - int(instance.metadata()["fleet-end-at"])
        for instance in customer.emulator.cloud.instances.values()
    }


@pytest.fixture
def abandoned(customer: Customer) -> Customer:
    """Return a customer whose program was killed while an instance ran and another waited for capacity."""
    customer.emulator.set_capacity(ZONE, 1)
    with pytest.raises(Killed):
        customer.up(Watch(kill), wait_s=7200)
    assert customer.statuses().count("PENDING") == 1
    return customer


def test_queued_instances_cost_nothing_and_are_replaced(abandoned: Customer) -> None:
    record = abandoned.services().store.fleet("demo").read()
    assert record is not None
    instances = abandoned.services().open_provider(record.spec.options, keep=True).list("demo")
    [queued] = [instance for instance in instances if instance.state is InstanceState.QUEUED]
    assert queued.current_usd_h == 0
    before = {instance.body["id"] for instance in abandoned.emulator.cloud.instances.values()}
    abandoned.up(Watch(lambda: abandoned.emulator.set_capacity(ZONE, 2)), wait_s=7200)
    after = {instance.body["id"] for instance in abandoned.emulator.cloud.instances.values()}
    assert len(before & after) == 1
    assert abandoned.statuses() == ["RUNNING", "RUNNING"]


def test_an_abandoned_request_that_gets_capacity_is_used(abandoned: Customer) -> None:
    abandoned.emulator.clock.advance(3000)
    abandoned.emulator.set_capacity(ZONE, 2)
    abandoned.emulator.settle()
    abandoned.up(wait_s=7200)
    assert ends(abandoned) == {600}
    assert abandoned.statuses() == ["RUNNING", "RUNNING"]
    assert abandoned.emulator.state()["calls"]["compute.instances.insert"] == 4  # at once, and in the queue
