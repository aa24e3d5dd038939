"""Networks of other projects (Shared VPC), and fleets without their own firewall rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.state import Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.provider import ProviderError
from tests.cloud.access_modes import HOST, NETWORK
from tests.cloud.conftest import Make
from tests.cloud.customer import QUICK
from tests.emulator import Emulator
from tests.next_steps import command_lines

SUBNET = f"projects/{HOST}/regions/us-central1/subnetworks/shared"
WORKERS = ["worker-0", "worker-1"]


@pytest.fixture
def emulator(emulator: Emulator) -> Emulator:
    emulator.set_networks()  # without "default"
    emulator.share_networks(HOST, "shared")
    return emulator


@pytest.fixture
def make(make: Make) -> Make:
    """Return a function that makes a fleet in the shared network."""
    return lambda **more: make(**{"network": NETWORK, "subnetwork": SUBNET, "zones": (), **more})


@pytest.mark.parametrize("prefix", ["", "https://www.googleapis.com/compute/v1/"])
def test_a_shared_network_is_used_with_rules_in_its_project(emulator: Emulator, make: Make, prefix: str) -> None:
    provider, spec = make(network=prefix + NETWORK, subnetwork=prefix + SUBNET)
    provider.check(spec)
    assert {offer.zone[:-2] for offer in provider.quote(spec, WORKERS).offers} == {"us-central1"}
    provider.create(spec, WORKERS, lambda *_: None)
    for instance in emulator.cloud.instances.values():
        assert instance.body["networkInterfaces"][0]["network"].endswith(NETWORK)
        assert instance.body["networkInterfaces"][0]["subnetwork"].endswith(SUBNET)
    assert len(emulator.cloud.firewalls) == 2
    assert all(f"/projects/{HOST}/" in rule["selfLink"] for rule in emulator.cloud.firewalls.values())
    emulator.set_caller("198.51.100.7")
    assert not provider.open_ssh(spec).changed
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert (emulator.cloud.firewalls, emulator.cloud.instances) == ({}, {})


@pytest.mark.parametrize("has_instances", [True, False])
def test_gc_finds_the_rules_in_the_host_project_after_the_state_was_lost(
    emulator: Emulator, make: Make, tmp_path: Path, has_instances: bool
) -> None:
    provider, spec = make()
    provider.create(spec, WORKERS, lambda *_: None)
    if not has_instances:
        provider.delete(provider.list("demo"), lambda *_: None)
    account = GceOptions(project="proj-1", endpoint=emulator.url)
    store = Store(tmp_path / "new")
    cleaner = GceProvider(store.owner(), "me", store, account, QUICK)
    orphans = cleaner.orphans()
    rules = [orphan for orphan in orphans if orphan.kind == "firewall rule"]
    assert [(rule.zone, rule.fleet) for rule in rules] == [(HOST, "demo")] * 2
    assert cleaner.delete_orphans(orphans, lambda *_: None) == []
    assert (emulator.cloud.firewalls, emulator.cloud.instances) == ({}, {})


def test_gc_leaves_rules_of_other_projects_in_the_host_project(emulator: Emulator, make: Make) -> None:
    provider, spec = make()
    provider.create(spec, WORKERS, lambda *_: None)
    for rule in emulator.cloud.firewalls.values():
        rule["description"] = rule["description"].replace("project proj-1", "project proj-2")
    assert {orphan.kind for orphan in provider.orphans()} == {"instance", "disk"}
    emulator.cloud.firewalls.clear()
    provider.delete_fleet("demo", lambda *_: None)


def test_a_role_that_is_missing_in_the_host_project_is_granted_there(emulator: Emulator, make: Make) -> None:
    emulator.deny(f"{HOST}:compute.networks.get")
    provider, spec = make()
    with pytest.raises(ProviderError) as caught:
        provider.quote(spec, WORKERS)
    grant = f"gcloud projects add-iam-policy-binding {HOST} --role roles/compute.networkUser --member="
    assert command_lines(caught.value).startswith(grant)


def test_existing_rules_are_used_without_permission_to_create_rules_in_the_host_project(
    emulator: Emulator, make: Make
) -> None:
    emulator.deny(f"{HOST}:compute.firewalls.create", f"{HOST}:compute.firewalls.list")
    provider, spec = make()
    steps: list[tuple[str, str]] = []
    provider.create(spec, WORKERS, lambda *step: steps.append(step))
    [note] = [text for place, text in steps if place == HOST]
    assert "tcp:22 from this computer" in note
    assert provider.open_ssh(spec).note == note
    assert len(provider.list("demo")) == 2
    assert provider.delete_fleet("demo", lambda *_: None) == []


def test_too_many_calls_are_repeated_and_are_not_a_missing_permission(emulator: Emulator, make: Make) -> None:
    provider, spec = make()
    emulator.faults.add("403-rate", "compute.firewalls.insert", times=0)
    with pytest.raises(ProviderError, match="rate of calls"):
        provider.create(spec, WORKERS, lambda *_: None)
    emulator.faults.clear()
    for method in ("compute.firewalls.insert", "compute.instances.getGuestAttributes"):
        emulator.faults.add("403-rate", method)
    provider.create(spec, WORKERS, lambda *_: None)
    assert len(provider.list("demo")) == 2
    calls = emulator.state()["calls"]
    assert min(calls["compute.firewalls.insert"], calls["compute.instances.getGuestAttributes"]) >= 2
    assert provider.delete_fleet("demo", lambda *_: None) == []


def test_a_fleet_without_its_own_rules_changes_no_rule(emulator: Emulator, make: Make) -> None:
    provider, spec = make(firewall=False)
    assert any("--no-firewall" in note for note in provider.quote(spec, WORKERS).notes)
    provider.create(spec, WORKERS, lambda *_: None)
    assert "--no-firewall" in provider.open_ssh(spec, make=True).note
    assert not [name for name in emulator.state()["calls"] if "firewalls" in name]
