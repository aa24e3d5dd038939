"""Machine types: GPUs that they include, what the default image supports, sales models, and zones for AI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.fleets import up
from fleet.errors import QuotaError, UsageError
from fleet.fleets.plan import GPU_PACKAGES, UpRequest
from fleet.state import Store
from provision.gce.catalog.gpus import GPUS
from provision.gce.catalog.machines import ARM_IMAGE, GPU_IMAGE, UNKNOWN, has_gpus, refusal, resolved, series_of
from provision.gce.options import GceOptions
from tests.cloud.histories import QuickServices, Quiet, reached
from tests.emulator import Emulator
from tests.emulator.catalog import MACHINE_TYPES
from tests.next_steps import repetition
from tests.settings import settings


@pytest.fixture
def emulator(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    monkeypatch.setattr("fleet.cli.fleets.up.reach", reached)
    return emulator


def made(emulator: Emulator, root: Path, **values: Any) -> tuple[GceOptions, tuple[str, ...]]:
    """Return what `fleet up` creates with these settings: the options and the packages on record."""
    given = settings(provider="gce", project="proj-1", endpoint=emulator.url, workers=1, **values)
    store = Store(root)
    up.run(UpRequest("demo", given), QuickServices(store, lambda _: True), Quiet())
    up.run(UpRequest("demo"), QuickServices(store, lambda _: True), Quiet())  # and a repeated call accepts the result
    record = store.fleet("demo").read()
    assert record is not None
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
    emulator: Emulator, tmp_path: Path, machine_type: str, gpu: str, gpus: int
) -> None:
    spot = "STANDARD" not in MACHINE_TYPES[machine_type].series.models
    cloud, packages = made(emulator, tmp_path, machine_type=machine_type, spot=spot)
    assert (cloud.gpu, cloud.gpus, cloud.image, packages) == (gpu, gpus, GPU_IMAGE, GPU_PACKAGES)
    [instance] = emulator.cloud.instances.values()
    assert (instance.blueprint.gpu, instance.blueprint.gpus) == (gpu, gpus)


@pytest.mark.parametrize("zone", ["us-central1-ai1a", None])
def test_zones_for_ai_are_zones(emulator: Emulator, tmp_path: Path, zone: str | None) -> None:
    if zone is None:
        emulator.set_capacity("us-central1-b", 0)
    made(emulator, tmp_path, gpu="b200", spot=True, **({"zones": (zone,)} if zone else {}))
    [instance] = emulator.cloud.instances.values()
    assert instance.blueprint.zone == "us-central1-ai1a"
    assert instance.blueprint.disks[0]["type"] == "hyperdisk-balanced"


@pytest.mark.parametrize(
    ("settings", "words", "again"),
    [
        ({"gpu": "p100"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "v100:2"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "h100"}, "a3-highgpu-1g is not available on demand", {"--spot": True}),
        ({"machine_type": "ct6e-standard-1t"}, "TPUs", {"--machine-type": None}),
        ({"machine_type": "n2-standard-16", "local_ssds": 1}, "it can have 2, 4, 8, 16 or 24", {"--local-ssd": "2"}),
        ({"machine_type": "c2-standard-60", "local_ssds": 24}, "it can have 8", {"--local-ssd": "8"}),
        ({"machine_type": "e2-standard-4", "local_ssds": 1}, "it does not support them", {"--local-ssd": None}),
        ({"gpu": "a100-80gb", "local_ssds": 1}, "it has its own", {"--local-ssd": None}),
    ],
)
def test_impossible_requests_are_refused_before_any_call(
    emulator: Emulator, tmp_path: Path, settings: dict[str, str], words: str, again: dict[str, Any] | None
) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        made(emulator, tmp_path, **settings)
    step = repetition(refusal.value)
    assert (step.change if step else None) == again
    assert refusal.value.hint
    assert emulator.state()["calls"] == {}


def test_a_custom_image_can_support_older_gpus(emulator: Emulator, tmp_path: Path) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    assert made(emulator, tmp_path, gpu="p100", image=image)[0].image == image


def test_fewer_than_eight_h100_are_rented_as_spot(emulator: Emulator, tmp_path: Path) -> None:
    assert made(emulator, tmp_path, gpu="h100:2", spot=True)[0].machine_type == "a3-highgpu-2g"


def test_an_unknown_gpu_is_refused_with_the_closest_name(emulator: Emulator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean h200"):
        made(emulator, tmp_path, gpu="h20")


@pytest.mark.parametrize("short", sorted(GPUS))
def test_each_gpu_of_the_catalog_can_be_rented_or_is_refused_with_a_next_step(
    emulator: Emulator, tmp_path: Path, short: str
) -> None:
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


def test_google_images_with_open_kernel_modules_are_refused_for_older_gpus() -> None:
    for family in ("common-cu129-ubuntu-2204-nvidia-580", "pytorch-2-9-cu129-ubuntu-2204-nvidia-570-v20260408"):
        image = f"projects/deeplearning-platform-release/global/images/family/{family}"
        refused = refusal(resolved(GceOptions(gpu="v100", image=image)))
        assert refused is not None
        assert family in refused.message
    image = "projects/deeplearning-platform-release/global/images/family/common-cu124-debian-11-nvidia-550"
    assert refusal(resolved(GceOptions(gpu="v100", image=image))) is None


ONE_OF_EACH_SERIES = sorted({name.rpartition("-")[0]: name for name in MACHINE_TYPES}.values())


@pytest.mark.parametrize("machine_type", ONE_OF_EACH_SERIES)
def test_each_series_is_created_or_refused_before_anything_is_paid(
    emulator: Emulator, tmp_path: Path, machine_type: str
) -> None:
    # Two series are newer than the product's table: a9 and n9a.
    given = settings(
        provider="gce", project="proj-1", endpoint=emulator.url, workers=1, machine_type=machine_type, spot=True
    )
    request, services = UpRequest("demo", given), QuickServices(Store(tmp_path), lambda _: True)
    if machine_type.startswith(("ct6e-", "a4x-")):
        with pytest.raises(UsageError):
            up.run(request, services, Quiet())
        assert emulator.state()["calls"] == {}
        return
    up.run(request, services, Quiet())
    [instance] = emulator.cloud.instances.values()
    [interface] = instance.body["networkInterfaces"]
    assert (interface["nicType"] == "GVNIC") == MACHINE_TYPES[machine_type].series.gvnic


@pytest.mark.parametrize("machine_type", ONE_OF_EACH_SERIES)
def test_flex_start_is_refused_for_machine_types_that_are_not_sold_so(machine_type: str) -> None:
    machine = MACHINE_TYPES[machine_type]
    refused = refusal(resolved(GceOptions(machine_type=machine_type, flex_start=True)))
    if series_of(machine_type) is UNKNOWN and not machine_type.startswith("ct6e-"):
        assert refused is None  # Compute Engine decides
        return
    is_sold = "FLEX_START" in machine.series.models and machine.family != "n1"
    assert (refused is None) == is_sold


def test_a_machine_type_with_arm_processors_gets_an_image_for_them(emulator: Emulator, tmp_path: Path) -> None:
    for machine_type in ("c4a-standard-4", "n9a-standard-4"):
        cloud, _ = made(emulator, tmp_path / machine_type, machine_type=machine_type)
        assert cloud.image == ARM_IMAGE
        emulator.reset()


@pytest.mark.parametrize(
    ("machine_type", "image", "words"),
    [
        (
            "c4a-standard-4",
            "ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
            "it is for X86_64 processors",
        ),
        ("c4-standard-4", "ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64", "it is for ARM64 processors"),
        ("c4-standard-4", "old-cloud/global/images/family/old", "it has no driver for gVNIC"),
    ],
)
def test_an_image_that_the_machine_type_cannot_boot_is_refused(
    emulator: Emulator, tmp_path: Path, machine_type: str, image: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        made(emulator, tmp_path, machine_type=machine_type, image=f"projects/{image}")
    step = repetition(refusal.value)
    assert step is not None
    assert step.change == {"--image": None}
    assert not [name for name in emulator.state()["calls"] if "nsert" in name]


def test_gpus_with_arm_processors_are_refused(emulator: Emulator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TensorFlow is not available with GPU support") as refusal:
        made(emulator, tmp_path, machine_type="a4x-highgpu-4g")
    step = repetition(refusal.value)
    assert step is not None
    assert step.change == {"--machine-type": None, "--gpu": "b200:8", "--spot": True}
    assert emulator.state()["calls"] == {}


def test_a_small_quota_for_solid_state_disks_advises_a_disk_type(emulator: Emulator, tmp_path: Path) -> None:
    emulator.set_quota("SSD_TOTAL_GB", 50)
    with pytest.raises(QuotaError, match="SSD_TOTAL_GB") as refusal:
        made(emulator, tmp_path)
    step = repetition(refusal.value)
    assert step is not None
    assert step.change == {"--disk-type": "pd-standard"}
    made(emulator, tmp_path, disk_type="pd-standard")
    [disk] = emulator.cloud.disks.values()
    assert disk["type"].endswith("/pd-standard")


def test_a_small_quota_for_disks_advises_no_type_that_the_machine_type_lacks(
    emulator: Emulator, tmp_path: Path
) -> None:
    emulator.set_quota("SSD_TOTAL_GB", 50)
    with pytest.raises(QuotaError, match="SSD_TOTAL_GB") as refusal:
        made(emulator, tmp_path, machine_type="c3-standard-4")
    assert repetition(refusal.value) is None


@pytest.mark.parametrize("machine_type", ["a4-highgpu-8g", "g4-standard-48", "a3-ultragpu-8g", "n4-standard-4"])
def test_a_disk_type_that_the_machine_type_does_not_support_is_refused(
    emulator: Emulator, tmp_path: Path, machine_type: str
) -> None:
    with pytest.raises(UsageError, match=r"cannot boot from a disk of type 'pd-balanced'"):
        made(emulator, tmp_path, machine_type=machine_type, spot=True, disk_type="pd-balanced")
    assert emulator.state()["calls"] == {}
    assert resolved(GceOptions(machine_type=machine_type)).disk_type == "hyperdisk-balanced"
    assert resolved(GceOptions()).disk_type == "pd-balanced"


def test_the_zones_of_a_region_that_refused_are_tried_one_by_one(emulator: Emulator, tmp_path: Path) -> None:
    # Compute Engine chooses one zone of the region, which has no capacity.
    emulator.faults.add("stockout", "compute.regionInstances.bulkInsert")
    made(emulator, tmp_path, gpu="t4", zones=("us-central1",))
    [instance] = emulator.cloud.instances.values()
    assert instance.blueprint.zone.startswith("us-central1-")
    calls = emulator.state()["calls"]
    assert (calls["compute.regionInstances.bulkInsert"], calls["compute.instances.bulkInsert"]) == (1, 1)


def test_zones_that_already_failed_are_denied(emulator: Emulator, tmp_path: Path) -> None:
    # First one zone, then the rest of its region: ALLOW does not exclude the first zone.
    emulator.faults.add("stockout", "compute.instances.bulkInsert", zone="us-central1-a")
    made(emulator, tmp_path, gpu="t4", zones=("us-central1-a", "us-central1"))
    [instance] = emulator.cloud.instances.values()
    assert instance.blueprint.zone != "us-central1-a"
