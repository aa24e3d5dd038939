"""Local SSDs, attached or included in the machine type, whose content ends when an instance stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud import compute_v1

from fleet.state import Store
from provision.gce.api.messages import from_json
from provision.gce.api.resources import cloud_of
from provision.gce.catalog.machines import cpus, resolved, series_of
from provision.gce.catalog.prices import table
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.emulator.catalog import MACHINE_TYPES

ZONE = "us-central1-a"
WORKERS = ["worker-0", "worker-1"]


def rented(emulator: Emulator, directory: Path, **options: Any) -> tuple[GceProvider, GceOptions]:
    """Create a fleet of two instances with these options."""
    store = Store(directory)
    store.fleet("demo").create()
    cloud = resolved(GceOptions(project="proj-1", endpoint=emulator.url, zones=(ZONE,), **options))
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, WORKERS, lambda *_: None)
    return provider, cloud


@pytest.mark.parametrize(
    ("options", "disks"),
    [
        ({"gpu": "a100-80gb", "gpus": 2}, 2),
        ({"gpu": "h100", "gpus": 8}, 16),
        ({"gpu": "t4", "local_ssds": 3}, 3),
        ({"gpu": "a100", "gpus": 2, "local_ssds": 4}, 4),
        ({"gpu": "t4", "flex_start": True, "local_ssds": 1, "max_duration_s": 3600}, 1),
    ],
)
def test_a_fleet_with_local_ssds_is_extended(
    emulator: Emulator, tmp_path: Path, options: dict[str, Any], disks: int
) -> None:
    provider, cloud = rented(emulator, tmp_path, **options)
    instance, _ = emulator.cloud.instances.values()
    local = [disk for disk in instance.body["disks"] if disk["type"] == "SCRATCH"]
    assert len(local) == disks
    listed = cloud_of(from_json(compute_v1.Instance, instance.body))
    assert (listed.disk_gb, listed.local_ssds) == (100, cloud.local_ssds)
    assert cloud.variables == {"FLEET_LOCAL_SSD": "/mnt/localssd"}
    url = f"{instance.body['selfLink']}/stop"
    refused = requests.post(url, timeout=60)
    assert (refused.status_code, "`discardLocalSsd`" in refused.text) == (400, True)

    before = provider.list("demo")
    if cloud.flex_start:  # a stop would give up the capacity
        return
    assert provider.extension_warning(before, 10 * 24 * 3600).endswith("the content of Local SSDs is lost")
    provider.extend(before, 10 * 24 * 3600, lambda *_: None)
    after = provider.list("demo")
    assert [each.id for each in after] == [each.id for each in before]
    assert all(new.delete_at > old.delete_at for new, old in zip(after, before, strict=True))
    assert provider.delete_fleet("demo", lambda *_: None) == []


def test_the_numbers_of_local_ssds_are_those_that_compute_engine_accepts() -> None:
    for name, machine in MACHINE_TYPES.items():
        counts = series_of(name).local_ssd_counts(cpus(name) or 0)
        assert (name, (0, *counts)) == (name, machine.local_ssd_counts)


def test_compute_engine_refuses_other_numbers(emulator: Emulator, tmp_path: Path) -> None:
    with pytest.raises(ProviderError) as refused:
        rented(emulator, tmp_path, local_ssds=9)
    assert "type n1-standard-4 should be one of [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24]" in refused.value.cause
    assert emulator.state()["instances"] == []


def test_instances_that_stop_at_the_end_of_their_lifetime_discard_local_ssds(
    emulator: Emulator, tmp_path: Path
) -> None:
    provider, _ = rented(emulator, tmp_path, gpu="t4", local_ssds=1, unattended=True, spot=True, max_duration_s=0)
    provider.extend(provider.list("demo"), 3600, lambda *_: None)
    extended = [instance.blueprint.scheduling for instance in emulator.cloud.instances.values()]
    assert provider.delete_fleet("demo", lambda *_: None) == []
    rented(emulator, tmp_path / "other", gpu="t4", local_ssds=1, unattended=True)
    created = [instance.blueprint.scheduling for instance in emulator.cloud.instances.values()]
    for scheduling in (*extended, *created):
        assert scheduling["instanceTerminationAction"] == "STOP"
        assert scheduling["onInstanceStopAction"] == {"discardLocalSsd": True}


def test_local_ssds_are_paid_while_the_instance_runs() -> None:
    plain = table().price(resolved(GceOptions(gpu="t4")), ZONE)
    price = table().price(resolved(GceOptions(gpu="t4", local_ssds=2)), ZONE)
    assert plain is not None
    assert price is not None
    assert price.usd_h - plain.usd_h == pytest.approx(2 * 375 * 0.12 / 730, abs=1e-5)
    assert price.stopped_usd_h == plain.stopped_usd_h
