"""Flex-start VMs of the emulator: which requests are accepted, and how they wait for capacity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.client import PROJECT, Client, codes, t4

ZONE = "us-central1-a"
AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": ZONE}


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=10.0) as emulator:
        yield emulator


def flex_start(wait_s: int = 0, run_s: int = 3600, **fields: Any) -> dict[str, Any]:
    """Return the fields of a Flex-start VM with a T4."""
    scheduling = {
        **t4()["scheduling"],
        "provisioning_model": "FLEX_START",
        "max_run_duration": {"seconds": run_s},
        "instance_termination_action": "DELETE",
    }
    params = {"params": compute.InstanceParams(request_valid_for_duration={"seconds": wait_s})} if wait_s else {}
    return {**t4(), "scheduling": scheduling, **params, **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (lambda: flex_start(60), "from 90 seconds to 2 hours"),
        (lambda: flex_start(7201), "from 90 seconds to 2 hours"),
        (lambda: flex_start(run_s=8 * 24 * 3600), "for 10 minutes to 7 days"),
        (lambda: flex_start(guest_accelerators=[]), "n1-standard-4 without GPUs"),
        (lambda: flex_start(machine="e2-standard-4", guest_accelerators=[]), "provisioning model FLEX_START"),
        (lambda: {**flex_start(90), "scheduling": t4()["scheduling"]}, "only for the provisioning model FLEX_START"),
    ],
)
def test_other_requests_are_refused(client: Client, fields: Any, message: str) -> None:
    with pytest.raises(compute.exceptions.BadRequest, match=message):
        client.insert("demo", **fields())


def test_a_bulk_insert_is_refused(client: Client) -> None:
    with pytest.raises(compute.exceptions.BadRequest, match="is not supported by instances"):
        client.bulk_insert(["a"], ZONE, **{**flex_start(), "guest_accelerators": t4(bulk=True)["guest_accelerators"]})


def test_without_a_wait_a_request_fails_at_once(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 0)
    operation = client.insert("demo", **flex_start())
    emulator.clock.advance(10)
    assert codes(client.wait(operation)) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]


def test_a_request_waits_until_there_is_capacity(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 0)
    operation = client.insert("demo", **flex_start(3600))
    emulator.clock.advance(1800)
    instance = client.instances.get(**AT_ZONE, instance="demo")
    assert (instance.status, emulator.state()["disks"]) == ("PENDING", [])
    assert not emulator.cloud.charges.all
    with pytest.raises(compute.exceptions.BadRequest, match="is not ready"):
        client.instances.stop_unary(**AT_ZONE, instance="demo")
    emulator.set_capacity(ZONE, 1)
    emulator.clock.advance(20)
    assert not client.wait(operation).error.errors
    instance = client.instances.get(**AT_ZONE, instance="demo")
    assert instance.status == "RUNNING"
    emulator.clock.advance(3700)
    assert client.all_instances() == {}  # its run time is over


def test_the_deletion_of_another_instance_makes_room(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 1)
    client.insert("first", **flex_start())
    emulator.clock.advance(20)
    client.insert("second", **flex_start(3600))
    emulator.clock.advance(20)
    assert client.instances.get(**AT_ZONE, instance="second").status == "PENDING"
    client.instances.delete_unary(**AT_ZONE, instance="first")
    emulator.clock.advance(40)
    assert {name: each.status for name, each in client.all_instances().items()} == {"second": "RUNNING"}


def test_a_request_expires(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 0)
    operation = client.insert("demo", **flex_start(90))
    emulator.clock.advance(120)
    assert codes(client.wait(operation)) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert emulator.state()["instances"] == []


def test_a_waiting_instance_is_deleted_without_waiting(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 0)
    operation = client.insert("demo", **flex_start(3600))
    emulator.clock.advance(20)
    client.instances.delete_unary(**AT_ZONE, instance="demo")
    emulator.clock.advance(20)
    assert codes(client.wait(operation)) == ["RESOURCE_NOT_FOUND"]
    state = emulator.state()
    assert state["instances"] == state["disks"] == state["operations"] == []
    emulator.set_capacity(ZONE, 1)
    emulator.clock.advance(20)
    assert emulator.state()["instances"] == []


def test_the_quota_of_preemptible_gpus_is_used(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 1)
    client.insert("first", **flex_start(3600))
    emulator.clock.advance(10)
    operation = client.insert("demo", **flex_start(3600))
    emulator.clock.advance(10)
    [error] = client.wait(operation).error.errors
    assert (error.code, "PREEMPTIBLE_NVIDIA_T4_GPUS" in error.message) == ("QUOTA_EXCEEDED", True)
