"""Valid combinations of Compute Engine settings, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from provision.gce.catalog.gpus import GPUS, find_gpu
from provision.gce.catalog.machines import CPU_IMAGE, GPU_IMAGE, cpus, describe, resolved
from provision.gce.options import GceOptions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t5", "unknown GPU type 't5'; did you mean t4"),
        ("", "unknown GPU type ''"),
        ("t4:3", r"an instance cannot have 3 t4 GPUs; it can have 1, 2 or 4"),
        ("t4:", "an instance cannot have no t4 GPUs"),
        ("t4:²", "cannot have ²"),
    ],
)
def test_unknown_gpus_are_refused_with_a_list_of_gpus(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_gpu(text)
    assert find_gpu("T4:2") == find_gpu("nvidia-tesla-t4:2") == (GPUS["t4"], 2)


def test_every_default_machine_type_goes_with_its_gpus() -> None:
    for gpu in GPUS.values():
        for count, machine_type in gpu.machine_types.items():
            cloud = resolved(GceOptions(gpu=gpu.short, gpus=count))
            assert (cloud.gpu, cloud.gpus, cloud.machine_type) == (gpu.accelerator, count, machine_type)
            assert cpus(machine_type)
            if gpu.built_in:
                by_machine = resolved(GceOptions(machine_type=machine_type))
                assert (by_machine.gpu, by_machine.gpus) == (gpu.accelerator, count)


IMAGE = "projects/p/global/images/i"


@pytest.mark.parametrize(
    ("asked", "description", "image"),
    [
        (GceOptions(), "n1-standard-4", CPU_IMAGE),
        (GceOptions(gpu="t4", gpus=2), "n1-standard-8 + 2 nvidia-tesla-t4", GPU_IMAGE),
        (GceOptions(gpu="t4", machine_type="n1-highmem-8"), "n1-highmem-8 + 1 nvidia-tesla-t4", GPU_IMAGE),
        (GceOptions(gpu="t4", machine_type="custom-6-20480"), "custom-6-20480 + 1 nvidia-tesla-t4", GPU_IMAGE),
        (GceOptions(machine_type="g2-standard-48"), "g2-standard-48 + 4 nvidia-l4", GPU_IMAGE),
        (GceOptions(gpu="l4", machine_type="g2-standard-24"), "g2-standard-24 + 2 nvidia-l4", GPU_IMAGE),
        (GceOptions(machine_type="a4-highgpu-8g"), "a4-highgpu-8g + 8 nvidia-b200", GPU_IMAGE),
        (GceOptions(image=IMAGE), "n1-standard-4", IMAGE),
    ],
)
def test_defaults(asked: GceOptions, description: str, image: str) -> None:
    settings = resolved(asked)
    assert (describe(settings), settings.image) == (description, image)
    assert resolved(settings) == settings


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (GceOptions(gpu="t4", machine_type="n2-standard-4"), "can be attached to N1 .* n2-standard-4 is not an N1"),
        (GceOptions(gpu="t4", gpus=3), "cannot have 3 t4 GPUs; it can have 1, 2 or 4"),
        (GceOptions(gpu="t4", machine_type="n1-standard-64"), "at most 48 vCPUs; n1-standard-64 has 64"),
        (
            GceOptions(gpu="l4", machine_type="n1-standard-4"),
            "available only with the machine types g2-standard-8",
        ),
        (GceOptions(gpu="l4", gpus=2, machine_type="g2-standard-4"), "comes with 1 nvidia-l4, not 2; g2-standard-24"),
        (GceOptions(gpus=2), "the type of the 2 GPUs is missing; choose from t4, l4,"),
        (GceOptions(machine_type="n1-standard-4\n"), "invalid machine type"),
        (GceOptions(max_duration_s=29), "not 29s"),
        (GceOptions(ssh_from=("10.0.0.1/8",)), "host bits set"),
        (GceOptions(image="ubuntu"), "write projects/PROJECT/global/images/family/ubuntu"),
        (GceOptions(network="a b"), "invalid network 'a b'"),
        (GceOptions(project="p#"), "invalid project 'p#'"),
    ],
)
def test_invalid_combinations_are_refused(asked: GceOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolved(asked)


def test_addresses_are_written_as_compute_engine_writes_them() -> None:
    given = ("203.0.113.7", "198.51.100.0/24", "0.0.0.0/0")
    assert resolved(GceOptions(ssh_from=given)).ssh_from == ("203.0.113.7/32", "198.51.100.0/24", "0.0.0.0/0")


def test_vcpus_by_the_machine_type_s_name() -> None:
    small = {"n1-highmem-96": 96, "e2-medium": 2, "custom-6-20480": 6, "n2-custom-4-8192-ext": 4}
    large = {"e2-custom-small-2-4096": 2, "a2-megagpu-16g": 96, "a3-highgpu-8g": 208, "x4-megamem-960-metal": 960}
    counts = {**small, **large, "c3-standard-22-lssd": 22}
    assert {name: cpus(name) for name in counts} == counts
    assert cpus("a9-unheard-of") is cpus("a9-highgpu-8g") is None
