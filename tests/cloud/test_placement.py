"""Instances that are placed close to each other, by a policy that is created and deleted with their fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.state import Store
from provision.gce.catalog.machines import resolved
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.program import Program

WORKERS = ["worker-0", "worker-1"]
Make = Callable[..., tuple[GceProvider, FleetSpec]]


@pytest.fixture
def make(emulator: Emulator, tmp_path: Path) -> Make:
    store = Store(tmp_path / "fleets")
    store.fleet("demo").create()

    def made(workers: int = 2, **given: Any) -> tuple[GceProvider, FleetSpec]:
        cloud = GceOptions(project="proj-1", endpoint=emulator.url, **given)
        provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
        return provider, FleetSpec("demo", "gce", workers, "ssh-ed25519 AAAA me", options=cloud)

    return made


@pytest.mark.parametrize(
    "given",
    [
        {"machine_type": "n2-standard-4", "placement": "compact", "zones": ("us-central1",)},
        {"gpu": "h100", "gpus": 8, "zones": ("us-central1-a",)},
        {"gpu": "l4", "gpus": 1, "placement": "compact", "flex_start": True, "zones": ("us-central1-a",)},
    ],
)
def test_the_policy_of_a_fleet_is_created_used_and_deleted_with_it(
    emulator: Emulator, make: Make, given: dict[str, Any]
) -> None:
    provider, spec = make(**given)
    provider.check(spec)
    provider.create(spec, WORKERS, lambda *_: None)
    [policy] = emulator.state()["policies"]
    for instance in emulator.cloud.instances.values():
        assert instance.body["resourcePolicies"][0].endswith(f"/regions/us-central1/resourcePolicies/{policy}")
    provider.delete(provider.list("demo")[1:], lambda *_: None)
    provider.create(spec, WORKERS[1:], lambda *_: None)
    assert emulator.state()["policies"] == [policy]
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert emulator.state()["policies"] == []


@pytest.mark.parametrize(
    ("workers", "given"),
    [
        (1, {"gpu": "h100", "gpus": 8}),
        (2, {"gpu": "h100", "gpus": 8, "placement": "any"}),
        (2, {"gpu": "t4", "gpus": 1}),
    ],
)
def test_other_fleets_have_no_policy(emulator: Emulator, make: Make, workers: int, given: dict[str, Any]) -> None:
    provider, spec = make(workers, zones=("us-central1-a",), **given)
    provider.create(spec, WORKERS[:workers], lambda *_: None)
    assert emulator.state()["policies"] == []
    assert not any("resourcePolicies" in each.body for each in emulator.cloud.instances.values())
    provider.delete_fleet("demo", lambda *_: None)


def test_a_policy_in_each_region_that_was_tried_is_deleted(emulator: Emulator, make: Make) -> None:
    emulator.faults.add("stockout", zone="us-central1-a", times=0)
    zones = ("us-central1-a", "us-west4-a")
    provider, spec = make(machine_type="n2-standard-4", placement="compact", zones=zones)
    provider.create(spec, WORKERS, lambda *_: None)
    assert len(emulator.state()["policies"]) == 2
    kinds = [orphan.kind for orphan in provider.orphans()]
    assert kinds.count("placement policy") == 2
    assert provider.delete_orphans(provider.orphans(), lambda *_: None) == []
    assert not any(emulator.state()[key] for key in ("instances", "disks", "firewalls", "policies"))


def test_what_cannot_be_placed_is_refused_before_the_price(caller: Program, make: Make) -> None:
    refused = caller.run("up", "--machine-type", "n1-standard-4", "--placement", "compact", "--dry-run", code=2)
    assert "n1-standard-4 does not support compact placement" in refused.err
    with pytest.raises(ValueError, match="choose from compact, any"):
        resolved(GceOptions(placement="far"))
    provider, spec = make(machine_type="n2-standard-4", placement="compact", zones=("us-central1-a",))
    provider.check(spec)


def test_a_policy_in_a_region_that_does_not_answer_is_not_forgotten(emulator: Emulator, make: Make) -> None:
    provider, spec = make(machine_type="n2-standard-4", placement="compact", zones=("us-central1-a",))
    provider.create(spec, WORKERS, lambda *_: None)
    emulator.set_outage("us-west4")
    provider.delete(provider.list("demo"), lambda *_: None)
    emulator.set_outage("us-central1")
    with pytest.raises(ProviderError, match="us-central1 did not answer"):
        provider.delete_fleet("demo", lambda *_: None)
    emulator.set_outage()
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert emulator.state()["policies"] == []
