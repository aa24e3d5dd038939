"""Zones that do not answer: what they have is unknown, and nothing else is claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from fleet.state import FleetRecord, Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.program import Program

ZONE, OTHER = "us-central1-a", "us-west4-b"
WORKERS = ["worker-0", "worker-1"]

Make = Callable[[Path], tuple[GceProvider, FleetSpec]]


@pytest.fixture
def make(emulator: Emulator) -> Make:
    def made(state: Path) -> tuple[GceProvider, FleetSpec]:
        store = Store(state)
        store.fleet("demo").create()
        cloud = GceOptions(project="proj-1", endpoint=emulator.url, zones=(ZONE,))
        provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
        spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
        store.fleet("demo").write(FleetRecord(spec, 1.0))
        return provider, spec

    return made


def test_lists_lack_zones_that_do_not_answer_only_if_the_caller_accepts_that(emulator: Emulator) -> None:
    emulator.set_outage(ZONE)
    url = f"{emulator.url}/compute/v1/projects/proj-1"
    assert requests.get(f"{url}/zones/{ZONE}/instances", timeout=60).status_code == 503
    assert requests.get(f"{url}/zones/{OTHER}/instances", timeout=60).status_code == 200
    lists = f"{url}/aggregated/instances"
    assert requests.get(lists, timeout=60).status_code == 503
    answer = requests.get(lists, {"returnPartialSuccess": "true"}, timeout=60).json()
    assert answer["unreachables"] == [f"projects/proj-1/zones/{ZONE}"]
    assert answer["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    with pytest.raises(ValueError, match="do not exist: mars-1"):
        emulator.set_outage("mars-1")


def test_an_instance_in_a_zone_that_does_not_answer_is_neither_missing_nor_deleted(
    emulator: Emulator, make: Make, tmp_path: Path
) -> None:
    provider, spec = make(tmp_path)
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


def test_down_and_gc_do_not_claim_that_nothing_is_left(caller: Program, emulator: Emulator, make: Make) -> None:
    provider, spec = make(caller.state)
    provider.create(spec, WORKERS, lambda *_: None)
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


def test_a_fleet_is_created_in_a_zone_that_answers(emulator: Emulator, make: Make, tmp_path: Path) -> None:
    provider, spec = make(tmp_path)
    emulator.set_outage(ZONE)
    with pytest.raises(ProviderError, match=f"{ZONE} did not answer, so it is unknown whether"):
        provider.quote(spec, WORKERS)
    anywhere = replace(spec, options=replace(GceOptions.of(spec.options), zones=()))
    assert ZONE not in {offer.zone for offer in provider.quote(anywhere, WORKERS).offers}
    provider.create(anywhere, WORKERS, lambda *_: None)
    assert [instance.name for instance in provider.list("demo")] == WORKERS
    assert ZONE not in {zone for zone, _ in emulator.cloud.instances}
    provider.delete_fleet("demo", lambda *_: None)


def test_the_resources_of_a_fleet_whose_journal_is_lost_may_be_in_any_zone(
    emulator: Emulator, make: Make, tmp_path: Path
) -> None:
    provider, _ = make(tmp_path)
    emulator.set_outage(OTHER)
    with pytest.raises(ProviderError, match=f"{OTHER} did not answer"):
        provider.delete_fleet("demo", lambda *_: None)
