"""Machine types: GPUs, images, sales models, zones for AI, Local SSDs, and compact placement."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import requests
from google.cloud import compute_v1

from fleet.cli.fleets import up
from fleet.errors import QuotaError, UsageError
from fleet.fleets.plan import GPU_PACKAGES, UpRequest
from provision.gce.api.client import from_json
from provision.gce.api.resources import cloud_of
from provision.gce.catalog.gpus import GPUS
from provision.gce.catalog.machines import ARM_IMAGE, GPU_IMAGE, has_gpus, refusal, resolved
from provision.gce.options import GceOptions
from tests.cloud.conftest import Make
from tests.cloud.customer import FLEET, Customer, Quiet
from tests.emulator import Emulator
from tests.emulator.catalog import MACHINE_TYPES
from tests.next_steps import repetition
from tests.program import Program


@pytest.fixture
def user(user: Customer) -> Customer:
    """Return a user with a fleet of one worker."""
    user.options["workers"] = 1
    return user


def made(user: Customer, **values: Any) -> tuple[GceOptions, tuple[str, ...]]:
    """Return what `fleet up` creates with these settings: the options and the packages on record."""
    user.up(**values)
    up.run(UpRequest(FLEET), user.services(), Quiet())  # and a repeated call accepts the result
    _, record = user.store.need(FLEET)
    return GceOptions.of(record.spec.options), record.spec.packages


@pytest.mark.parametrize(
    ("machine_type", "gpu", "gpus"),
    [
        ("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8),
        ("a4-highgpu-8g", "nvidia-b200", 8),
        ("g4-standard-48", "nvidia-rtx-pro-6000", 1),
        ("a9-newgpu-4g", "nvidia-new-1tb", 4),  # known only to Compute Engine
    ],
)
def test_a_machine_type_with_gpus_gets_their_image_packages_and_check(
    user: Customer, machine_type: str, gpu: str, gpus: int
) -> None:
    spot = "STANDARD" not in MACHINE_TYPES[machine_type].series.models
    cloud, packages = made(user, machine_type=machine_type, spot=spot)
    assert (cloud.gpu, cloud.gpus, cloud.image, packages) == (gpu, gpus, GPU_IMAGE, GPU_PACKAGES)
    [instance] = user.emulator.cloud.instances.values()
    assert (instance.blueprint.gpu, instance.blueprint.gpus) == (gpu, gpus)


@pytest.mark.parametrize("zone", ["us-central1-ai1a", None])
def test_zones_for_ai_are_zones(user: Customer, zone: str | None) -> None:
    if zone is None:
        user.emulator.set_capacity("us-central1-b", 0)
    made(user, gpu="b200", spot=True, **({"zones": (zone,)} if zone else {}))
    [instance] = user.emulator.cloud.instances.values()
    assert instance.blueprint.zone == "us-central1-ai1a"
    assert instance.blueprint.disks[0]["type"] == "hyperdisk-balanced"


@pytest.mark.parametrize(
    ("settings", "words", "again"),
    [
        ({"gpu": "p100"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "v100:2"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "h100"}, "a3-highgpu-1g is not available on demand", {"--spot": True}),
        ({"machine_type": "ct6e-standard-1t"}, "TPUs", {"--machine-type": None}),
    ],
)
def test_impossible_requests_are_refused_before_any_call(
    user: Customer, settings: dict[str, str], words: str, again: dict[str, Any] | None
) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        made(user, **settings)
    step = repetition(refusal.value)
    assert (step.change if step else None) == again
    assert refusal.value.hint
    assert user.emulator.state()["calls"] == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"disk_gb": 5}, "a boot disk has 10 to 65536 GB, not 5"),
        ({"disk_gb": 70_000}, "a boot disk has 10 to 65536 GB, not 70000"),
        ({"gpu": "t4", "local_ssds": -1}, "fewer than 0 GPUs or Local SSDs"),
    ],
)
def test_impossible_numbers_are_refused_before_any_call(user: Customer, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(user, **settings)
    assert user.emulator.state()["calls"] == {}


@pytest.mark.parametrize("short", sorted(GPUS))
def test_each_gpu_of_the_catalog_can_be_rented_or_is_refused_with_a_next_step(user: Customer, short: str) -> None:
    for spot in (False, True):
        for count in GPUS[short].counts:
            cloud = resolved(GceOptions(gpu=f"{short}:{count}", spot=spot))
            refused = refusal(cloud)
            if refused is not None:
                assert refused.hint
                assert refused.again
                changed = {name.removeprefix("--"): value for name, value in refused.again.items()}
                retried = resolved(replace(GceOptions(gpu=f"{short}:{count}", spot=spot), **changed))  # type: ignore[arg-type]
                assert refusal(retried) is None
                continue
            machine = MACHINE_TYPES[cloud.machine_type]
            assert short not in ("p4", "p100", "v100")
            assert ("SPOT" if spot else "STANDARD") in machine.series.models
            assert cloud.disk_type in machine.series.disks
            brought = (machine.gpu, machine.gpus) if machine.gpu else (cloud.gpu, cloud.gpus)
            assert brought == (cloud.gpu, cloud.gpus)
            assert (has_gpus(cloud), cloud.image) == (True, GPU_IMAGE)


ONE_OF_EACH_SERIES = sorted({name.rpartition("-")[0]: name for name in MACHINE_TYPES}.values())


@pytest.mark.parametrize("machine_type", ONE_OF_EACH_SERIES)
def test_each_series_is_created_or_refused_before_anything_is_paid(user: Customer, machine_type: str) -> None:
    # Two series are newer than the product's table: a9 and n9a.
    if machine_type.startswith(("ct6e-", "a4x-")):
        with pytest.raises(UsageError):
            user.up(machine_type=machine_type, spot=True)
        assert user.emulator.state()["calls"] == {}
        return
    user.up(machine_type=machine_type, spot=True)
    [instance] = user.emulator.cloud.instances.values()
    [interface] = instance.body["networkInterfaces"]
    assert (interface["nicType"] == "GVNIC") == MACHINE_TYPES[machine_type].series.gvnic


@pytest.mark.parametrize("machine_type", ["c4a-standard-4", "n9a-standard-4"])
def test_a_machine_type_with_arm_processors_gets_an_image_for_them(user: Customer, machine_type: str) -> None:
    cloud, _ = made(user, machine_type=machine_type)
    assert cloud.image == ARM_IMAGE


def test_a_small_quota_for_solid_state_disks_advises_a_disk_type(user: Customer) -> None:
    user.emulator.set_quota("SSD_TOTAL_GB", 50)
    with pytest.raises(QuotaError, match="SSD_TOTAL_GB") as refusal:
        made(user)
    step = repetition(refusal.value)
    assert step is not None
    assert step.change == {"--disk-type": "pd-standard"}
    made(user, disk_type="pd-standard")
    [disk] = user.emulator.cloud.disks.values()
    assert disk["type"].endswith("/pd-standard")


WORKERS = ["worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("options", "disks"),
    [
        ({"gpu": "a100-80gb:2"}, 2),
        ({"gpu": "h100:8"}, 16),
        ({"gpu": "t4", "local_ssds": 3}, 3),
        ({"gpu": "a100:2", "local_ssds": 4}, 4),
        ({"gpu": "t4", "flex_start": True, "local_ssds": 1, "max_duration_s": 3600}, 1),
    ],
)
def test_a_fleet_with_local_ssds_is_extended(
    emulator: Emulator, make: Make, options: dict[str, Any], disks: int
) -> None:
    provider, spec = make(**options)
    cloud = resolved(GceOptions.of(spec.options))
    provider.create(spec, WORKERS, lambda *_: None)
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


@pytest.mark.parametrize(
    "given",
    [
        {"machine_type": "n2-standard-4", "placement": "compact", "zones": ("us-central1",)},
        {"gpu": "h100:8", "zones": ("us-central1-a",)},
        {"gpu": "l4", "placement": "compact", "flex_start": True, "zones": ("us-central1-a",)},
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


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"machine_type": "n2-standard-16", "local_ssds": 1}, r"should be one of \[0, 2, 4, 8, 16, 24\]"),
        ({"machine_type": "n4-standard-4", "disk_type": "pd-balanced"}, "disk type cannot be used by n4-standard-4"),
        (
            {
                "machine_type": "c4a-standard-4",
                "image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
            },
            r"architecture \(X86_64\) is not compatible",
        ),
        ({"labels": ("Team=vision",)}, "Label 'Team' or its value does not conform"),
    ],
)
def test_what_compute_engine_rejects_costs_nothing_and_is_explained(
    user: Customer, settings: dict[str, Any], cause: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        user.up(**settings)
    assert re.search(cause, refusal.value.cause)
    assert user.held() == []
    assert not user.emulator.cloud.charges
