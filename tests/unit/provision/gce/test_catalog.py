"""Valid combinations of Compute Engine settings, and the errors for invalid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.gce.catalog.gpus import GPUS, find_gpu
from provision.gce.catalog.machines import CPU_IMAGE, GPU_IMAGE, cpus, describe, resolved
from provision.gce.catalog.names import is_region, is_zone, region_of
from provision.gce.options import GceOptions


@pytest.mark.parametrize(
    ("text", "short", "count"),
    [
        ("t4", "t4", 1),
        ("T4:2", "t4", 2),
        ("nvidia-tesla-t4:4", "t4", 4),
        ("l4", "l4", 1),
        ("a100", "a100", 1),
        ("nvidia-tesla-a100:16", "a100", 16),
        ("a100-80gb:8", "a100-80gb", 8),
        ("nvidia-h100-80gb:8", "h100", 8),
    ],
)
def test_gpus_are_found_by_both_names(text: str, short: str, count: int) -> None:
    assert find_gpu(text) == (GPUS[short], count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "t5",
            "unknown GPU type 't5'; did you mean t4",
        ),
        ("", "unknown GPU type ''"),
        ("t4:3", "an instance cannot have 3 t4 GPUs; it can have 1, 2 or 4"),
        ("t4:", "an instance cannot have no t4 GPUs"),
        ("t4:0", "cannot have 0"),
        ("t4:-1", "cannot have -1"),
        ("t4:²", "cannot have ²"),
        ("t4:two", "cannot have two"),
        ("t4:1:1", "cannot have 1:1"),
    ],
)
def test_unknown_gpus_are_refused_with_a_list_of_gpus(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        find_gpu(text)


def test_every_default_machine_type_goes_with_its_gpus() -> None:
    for gpu in GPUS.values():
        assert set(gpu.machine_types) == set(gpu.counts)
        for count in gpu.counts:
            cloud = resolved(GceOptions(gpu=gpu.short, gpus=count))
            assert (cloud.gpu, cloud.gpus) == (gpu.accelerator, count)
            assert cloud.machine_type == gpu.machine_types[count]
            assert cpus(cloud.machine_type)
            if gpu.built_in:
                by_machine = resolved(GceOptions(machine_type=cloud.machine_type))
                assert (by_machine.gpu, by_machine.gpus) == (gpu.accelerator, count)


@pytest.mark.parametrize(
    ("asked", "machine_type", "gpu", "gpus", "image"),
    [
        (GceOptions(), "n1-standard-4", "", 0, CPU_IMAGE),
        (GceOptions(gpu="t4"), "n1-standard-4", "nvidia-tesla-t4", 1, GPU_IMAGE),
        (GceOptions(gpu="t4", gpus=2), "n1-standard-8", "nvidia-tesla-t4", 2, GPU_IMAGE),
        (
            GceOptions(gpu="nvidia-tesla-t4", gpus=1, machine_type="n1-highmem-8"),
            "n1-highmem-8",
            "nvidia-tesla-t4",
            1,
            GPU_IMAGE,
        ),
        (GceOptions(gpu="t4", machine_type="custom-6-20480"), "custom-6-20480", "nvidia-tesla-t4", 1, GPU_IMAGE),
        (GceOptions(machine_type="e2-standard-2"), "e2-standard-2", "", 0, CPU_IMAGE),
        (GceOptions(machine_type="g2-standard-48"), "g2-standard-48", "nvidia-l4", 4, GPU_IMAGE),
        (GceOptions(gpu="l4", machine_type="g2-standard-24"), "g2-standard-24", "nvidia-l4", 2, GPU_IMAGE),
        (GceOptions(gpu="l4", gpus=1, machine_type="g2-standard-32"), "g2-standard-32", "nvidia-l4", 1, GPU_IMAGE),
        (GceOptions(machine_type="a4-highgpu-8g"), "a4-highgpu-8g", "nvidia-b200", 8, GPU_IMAGE),
        (GceOptions(image="projects/p/global/images/i"), "n1-standard-4", "", 0, "projects/p/global/images/i"),
    ],
)
def test_defaults(asked: GceOptions, machine_type: str, gpu: str, gpus: int, image: str) -> None:
    settings = resolved(asked)
    assert (settings.machine_type, settings.gpu, settings.gpus, settings.image) == (machine_type, gpu, gpus, image)
    assert resolved(settings) == settings


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            GceOptions(gpu="t4", machine_type="n2-standard-4"),
            "can be attached to N1 .* n2-standard-4 is not an N1 machine type",
        ),
        (GceOptions(gpu="t4", machine_type="f1-micro"), "can be attached to N1"),
        (
            GceOptions(gpu="t4", machine_type="g2-standard-4"),
            "g2-standard-4 is not an N1 machine type",
        ),
        (GceOptions(gpu="t4", gpus=3), "cannot have 3 t4 GPUs; it can have 1, 2 or 4"),
        (GceOptions(gpu="t4", machine_type="n1-standard-64"), "at most 48 vCPUs; n1-standard-64 has 64"),
        (GceOptions(gpu="v100", machine_type="custom-14-20480"), "at most 12 vCPUs"),
        (
            GceOptions(gpu="l4", machine_type="n1-standard-4"),
            "is available only with the machine types g2-standard-8,",
        ),
        (GceOptions(gpu="l4", gpus=2, machine_type="g2-standard-4"), "comes with 1 nvidia-l4, not 2; g2-standard-24"),
        (GceOptions(gpu="l4", machine_type="g2-standard-5"), "not with g2-standard-5"),
        (GceOptions(gpu="a100", machine_type="a2-ultragpu-1g"), "not with a2-ultragpu-1g"),
        (
            GceOptions(gpus=2),
            "the type of the 2 GPUs is missing; choose from t4, l4,",
        ),
        (GceOptions(gpu="t4", gpus=-1), "cannot have -1 GPUs"),
        (GceOptions(machine_type="n1"), "invalid machine type 'n1'"),
        (GceOptions(machine_type="N1-standard-4"), "invalid machine type"),
        (GceOptions(machine_type="n1-standard-4\n"), "invalid machine type"),
        (GceOptions(machine_type="n1-standard-4/x"), "invalid machine type"),
        (GceOptions(max_duration_s=29), "not 29s"),
        (GceOptions(max_duration_s=-5), "not -5s"),
        (GceOptions(idle_timeout_s=299), "--idle-timeout is at least 5 minutes"),
        (GceOptions(max_duration_s=120 * 86400 + 1), "120 days"),
        (GceOptions(zones=("us-central1-a", "mars")), "'mars' is neither a zone nor a region"),
        (GceOptions(zones=("us-central1/a",)), "neither a zone nor a region"),
        (GceOptions(ssh_from=("everybody",)), "'everybody' is not a range of IPv4 addresses"),
        (GceOptions(ssh_from=("10.0.0.1/8",)), "host bits set"),
        (GceOptions(ssh_from=("::/0",)), "not a range of IPv4"),
        (GceOptions(image="my image"), "invalid image 'my image'"),
        (GceOptions(image="ubuntu"), "write projects/PROJECT/global/images/family/ubuntu"),
        (GceOptions(network="a b"), "invalid network 'a b'"),
        (GceOptions(subnetwork="x?y"), "invalid subnetwork 'x\\?y'"),
        (GceOptions(project="p#"), "invalid project 'p#'"),
        (GceOptions(disk_type="pd balanced"), "invalid disk type 'pd balanced'"),
        (GceOptions(disk_gb=9), "10 to 65536 GB, not 9"),
    ],
)
def test_invalid_combinations_are_refused(asked: GceOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolved(asked)


@pytest.mark.parametrize("duration_s", [0, 30, 120 * 86400])
def test_durations_that_compute_engine_takes(duration_s: int) -> None:
    assert resolved(GceOptions(max_duration_s=duration_s)).max_duration_s == duration_s


def test_addresses_are_written_as_compute_engine_writes_them() -> None:
    given = ("203.0.113.7", "198.51.100.0/24", "0.0.0.0/0")
    assert resolved(GceOptions(ssh_from=given)).ssh_from == ("203.0.113.7/32", "198.51.100.0/24", "0.0.0.0/0")


@pytest.mark.parametrize(
    ("machine_type", "count"),
    [
        ("n1-standard-4", 4),
        ("n1-highmem-96", 96),
        ("e2-medium", 2),
        ("f1-micro", 1),
        ("custom-6-20480", 6),
        ("n2-custom-4-8192-ext", 4),
        ("n2d-custom-16-65536", 16),
        ("e2-custom-small-2-4096", 2),
        ("g2-standard-24", 24),
        ("a2-highgpu-2g", 24),
        ("a2-megagpu-16g", 96),
        ("a3-highgpu-8g", 208),
        ("c3-standard-22-lssd", 22),
        ("x4-megamem-960-metal", 960),
        ("a9-unheard-of", None),
    ],
)
def test_vcpus_by_the_machine_type_s_name(machine_type: str, count: int | None) -> None:
    assert cpus(machine_type) == count


def test_an_instance_in_compute_engine_s_words() -> None:
    assert describe(resolved(GceOptions(gpu="t4", gpus=2))) == "n1-standard-8 + 2 nvidia-tesla-t4"
    assert describe(GceOptions()) == "n1-standard-4"
    assert describe(replace(GceOptions(), machine_type="e2-micro")) == "e2-micro"


def test_zones_and_regions() -> None:
    assert is_zone("us-central1-a")
    assert is_zone("northamerica-northeast1-c")
    assert not is_zone("us-central1")
    assert not is_zone("us-central1-a\n")
    assert is_region("europe-west12")
    assert not is_region("us-central1-a")
    assert not is_region("us")
    assert region_of("europe-west12-b") == "europe-west12"
    with pytest.raises(ValueError, match="'us-central1' is not a zone"):
        region_of("us-central1")
