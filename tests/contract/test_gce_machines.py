"""Machine types: GPUs that they bring, what the default image supports, what is sold, and zones for AI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.commands import up
from fleet.commands.wanted import GPU_PACKAGES, UpRequest
from fleet.errors import UsageError
from fleet.settings import Settings
from fleet.state import Store
from provision.gce.catalog import GPU_IMAGE
from provision.model import CloudSpec
from tests.contract.histories import QuickPorts, Quiet, reached
from tests.emulator import Emulator


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setattr("fleet.commands.up.reach", reached)
    running.reset()
    yield running
    assert running.state()["violations"] == []


def made(emulator: Emulator, root: Path, **settings: Any) -> tuple[CloudSpec, tuple[str, ...]]:
    """What `fleet up` with these settings makes: the cloud and the packages on record."""
    said = Settings(provider="gce", project="proj-1", endpoint=emulator.url, workers=1, **settings)
    store = Store(root)
    up.run(UpRequest("demo", said), QuickPorts(store, lambda _: True), Quiet())
    up.run(UpRequest("demo"), QuickPorts(store, lambda _: True), Quiet())  # and a repetition accepts what it made
    record = store.fleet("demo").read()
    assert record is not None
    assert record.spec.cloud is not None
    return record.spec.cloud, record.spec.packages


@pytest.mark.parametrize(
    ("machine_type", "gpu", "gpus"),
    [
        ("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8),
        ("a4-highgpu-8g", "nvidia-b200", 8),
        ("g4-standard-48", "nvidia-rtx-pro-6000", 1),
        ("a9-newgpu-4g", "nvidia-new-1tb", 4),  # which only Compute Engine knows
    ],
)
def test_a_machine_type_with_gpus_gets_their_image_packages_and_check(
    emulator: Emulator, tmp_path: Path, machine_type: str, gpu: str, gpus: int
) -> None:
    cloud, packages = made(emulator, tmp_path, machine_type=machine_type)
    assert (cloud.gpu, cloud.gpus, cloud.image, packages) == (gpu, gpus, GPU_IMAGE, GPU_PACKAGES)
    [instance] = emulator.cloud.instances.values()
    assert (instance.blueprint.gpu, instance.blueprint.gpus) == (gpu, gpus)


@pytest.mark.parametrize("zone", ["us-central1-ai1a", None])
def test_zones_for_ai_are_zones(emulator: Emulator, tmp_path: Path, zone: str | None) -> None:
    if zone is None:
        emulator.set_capacity("us-central1-b", 0)
    made(emulator, tmp_path, gpu="b200", zones=(zone,) if zone else None)
    [instance] = emulator.cloud.instances.values()
    assert instance.blueprint.zone == "us-central1-ai1a"
    assert instance.blueprint.disks[0]["type"] == "hyperdisk-balanced"


@pytest.mark.parametrize(
    ("settings", "words", "again"),
    [
        ({"gpu": "p100"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "v100:2"}, "open kernel modules", {"--gpu": "t4"}),
        ({"gpu": "h100"}, "a3-highgpu-1g is not sold on demand", {"--spot": True}),
        ({"machine_type": "ct6e-standard-1t"}, "TPUs", None),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(
    emulator: Emulator, tmp_path: Path, settings: dict[str, str], words: str, again: dict[str, Any] | None
) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        made(emulator, tmp_path, **settings)
    assert (refusal.value.again.change if refusal.value.again else None) == again
    assert refusal.value.hint
    assert emulator.state()["calls"] == {}


def test_an_image_of_the_user_s_own_may_support_older_gpus(emulator: Emulator, tmp_path: Path) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    assert made(emulator, tmp_path, gpu="p100", image=image)[0].image == image


def test_a_few_h100_are_had_as_spot(emulator: Emulator, tmp_path: Path) -> None:
    assert made(emulator, tmp_path, gpu="h100:2", spot=True)[0].machine_type == "a3-highgpu-2g"


def test_an_unknown_gpu_is_answered_with_the_nearest(emulator: Emulator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean h200"):
        made(emulator, tmp_path, gpu="h20")
