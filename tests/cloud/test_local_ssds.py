"""Machines that come with Local SSDs, whose content ends when an instance stops."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from fleet.state import Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.gce.rest.resources import cloud_of
from provision.model import FleetSpec
from tests.cloud.histories import QUICK
from tests.emulator import Emulator

ZONE = "us-central1-a"
WORKERS = ["worker-0", "worker-1"]


@pytest.mark.parametrize(("gpu", "gpus", "disks"), [("a100-80gb", 2, 2), ("h100", 8, 16)])
def test_a_fleet_with_local_ssds_is_extended(
    emulator: Emulator, tmp_path: Path, gpu: str, gpus: int, disks: int
) -> None:
    store = Store(tmp_path)
    store.fleet("demo").create()
    cloud = GceOptions(project="proj-1", endpoint=emulator.url, zones=(ZONE,), gpu=gpu, gpus=gpus)
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, WORKERS, lambda *_: None)
    instance, _ = emulator.cloud.instances.values()
    local = [disk for disk in instance.body["disks"] if disk["type"] == "SCRATCH"]
    assert len(local) == disks
    assert cloud_of(instance.body).disk_gb == 100
    url = f"{instance.body['selfLink']}/stop"
    refused = requests.post(url, timeout=10)
    assert (refused.status_code, "`discardLocalSsd`" in refused.text) == (400, True)

    before = provider.list("demo")
    provider.extend(before, 10 * 24 * 3600, lambda *_: None)
    after = provider.list("demo")
    assert [each.id for each in after] == [each.id for each in before]
    assert all(new.delete_at > old.delete_at for new, old in zip(after, before, strict=True))
    assert provider.delete_fleet("demo", lambda *_: None) == []
