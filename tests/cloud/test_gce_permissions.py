"""The permissions that `fleet doctor` checks are those that the calls of a fleet need."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.state import Store, caller
from provision.gce.catalog.machines import resolved
from provision.gce.checks.account import permissions
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from tests.cloud.access_modes import OPTIONAL
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.emulator.client import Client

NAMES = ("worker-0", "worker-1")


def whole_life(emulator: Emulator, root: Path, cloud: GceOptions) -> GceOptions:
    """Make all calls of a provider for a fleet, from the quote to the deletion; return the resolved cloud."""
    store = Store(root)
    store.fleet("demo").create()
    cloud = replace(cloud, project="proj-1", endpoint=emulator.url)
    provider = GceProvider(store.owner(), caller(), store.journal, cloud, QUICK)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA fleet", packages=("six",), options=cloud)
    emulator.translate_addresses("us-central1")
    assert all(check.ok for check in provider.doctor() if check.subject != "gcloud")
    emulator.api.needed.clear()  # of optional checks
    provider.complete(spec)
    provider.quote(spec, NAMES)
    provider.create(spec, NAMES, lambda *_: None)
    instances = provider.list("demo")
    provider.hosts(spec, instances)
    for rule in emulator.cloud.firewalls.values():
        if rule.get("sourceRanges") and cloud.external:
            rule["sourceRanges"] = ["198.51.100.7/32"]  # the previous address of the caller
    provider.open_ssh(spec)
    provider.extend(instances, 30 * 24 * 3600, lambda *_: None)  # longer than until the deletion
    provider.stop_at(instances, time.time() + 600)
    provider.termination_reasons("demo", NAMES)
    provider.delete(instances[:1], lambda *_: None)
    provider.create(spec, NAMES[:1], lambda *_: None)
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert provider.orphans() == []
    return resolved(cloud)


@pytest.mark.parametrize(
    "cloud",
    [
        GceOptions(gpu="t4", zones=("us-central1",)),
        GceOptions(zones=("us-central1-a",), external=False, firewall=False),
        GceOptions(zones=("us-central1-a",), reservation="r1"),
        GceOptions(zones=("us-central1",), machine_type="n2-standard-4", placement="compact"),
        GceOptions(zones=("us-central1-a",), scopes=("https://www.googleapis.com/auth/devstorage.read_only",)),
    ],
)
@pytest.mark.usefixtures("gcloud")
def test_doctor_checks_the_permissions_of_all_calls_of_a_fleet(tmp_path: Path, cloud: GceOptions) -> None:
    with Emulator(operation_s=0.003) as emulator:
        if cloud.reservation:
            Client(emulator.url).reserve(cloud.reservation, 2)
        used = resolved(whole_life(emulator, tmp_path, cloud))
        needed = emulator.api.needed - OPTIONAL
        assert sorted(needed) == sorted(needed & set(permissions(used, "proj-1")))
        assert emulator.state()["violations"] == []


def test_permissions_of_other_projects_are_not_checked_in_this_project() -> None:
    shared = resolved(
        GceOptions(network="projects/host-proj/global/networks/n", image="projects/proj-1/global/images/i")
    )
    checked = permissions(shared, "proj-1")
    assert not [
        permission for permission in checked if "firewalls.create" in permission or "subnetworks" in permission
    ]
    assert {"compute.images.get", "compute.images.useReadOnly"} <= {*checked}
    default = permissions(resolved(GceOptions()), "proj-1")
    assert [permission for permission in default if ".images." in permission] == ["compute.images.list"]
