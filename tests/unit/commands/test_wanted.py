"""What `fleet up` is taken to mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.errors import UsageError
from fleet.fleets.resolution import GPU_PACKAGES, PACKAGES, UpRequest, wanted
from fleet.settings import Settings
from fleet.state import FleetRecord
from provision.gce.catalog.machines import CPU_IMAGE, GPU_IMAGE
from provision.model import CloudSpec, FleetSpec
from tests.next_steps import next_lines, repetition
from tests.unit.commands.clouds import host

SILENCE = Settings()


def asked(
    said: Settings = SILENCE, defaults: Settings = SILENCE, record: FleetSpec | None = None, *, ready: bool = False
) -> FleetSpec:
    hosts = (host("worker-0"),) if ready else ()
    return wanted(UpRequest("demo", said, defaults), FleetRecord(record, 1.0, hosts) if record else None)


def test_without_a_word_it_is_two_workers_on_this_computer() -> None:
    assert asked() == FleetSpec("demo", "local", 2)
    assert asked(defaults=Settings(project="p", endpoint="http://127.0.0.1:1")) == FleetSpec("demo", "local", 2)


@pytest.mark.parametrize(
    "said",
    [
        Settings(gpu="t4"),
        Settings(machine_type="n1-standard-8"),
        Settings(zones=("us-central1",)),
        Settings(spot=True),
        Settings(project="p"),
        Settings(provider="gce"),
    ],
)
def test_what_only_a_cloud_has_means_compute_engine(said: Settings) -> None:
    assert asked(said).provider == "gce"
    with pytest.raises(UsageError, match="this computer has no such setting"):
        asked(replace(said, provider="local", image="i"))


def test_packages_can_change_before_a_fleet_is_ready() -> None:
    has = asked(Settings(gpu="t4", packages=("none-such",)))
    assert asked(Settings(packages=("jax",)), record=has).packages == ("jax",)
    spec = asked(Settings(python="/p"), record=has)
    assert (spec.python, spec.packages) == ("/p", ())


def test_a_gpu_fleet_in_full() -> None:
    spec = asked(Settings(gpu="t4:2", workers=4), Settings(project="p", zones=("us-central1",), workers=3))
    assert spec == FleetSpec(
        "demo",
        "gce",
        4,
        packages=GPU_PACKAGES,
        cloud=CloudSpec(
            project="p",
            zones=("us-central1",),
            machine_type="n1-standard-8",
            gpu="nvidia-tesla-t4",
            gpus=2,
            image=GPU_IMAGE,
            disk_type="pd-balanced",
        ),
    )


def test_a_fleet_without_gpus_gets_tensorflow_without_them() -> None:
    spec = asked(Settings(provider="gce"))
    assert spec.packages == PACKAGES
    assert spec.cloud == CloudSpec(machine_type="n1-standard-4", image=CPU_IMAGE, disk_type="pd-balanced")


@pytest.mark.parametrize(
    ("said", "defaults", "python", "packages"),
    [
        (Settings(python="/p"), Settings(), "/p", ()),
        (Settings(python="/p"), Settings(packages=("jax",)), "/p", ()),
        (Settings(packages=("jax",)), Settings(python="/p"), "", ("jax",)),
        (Settings(), Settings(python="/p"), "/p", ()),
        (Settings(), Settings(packages=()), "", ()),
    ],
)
def test_an_interpreter_of_the_hosts_own_has_its_own_packages(
    said: Settings, defaults: Settings, python: str, packages: tuple[str, ...]
) -> None:
    spec = asked(replace(said, provider="gce"), defaults)
    assert (spec.python, spec.packages) == (python, packages)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Settings(workers=0), "at least one worker"),
        (Settings(gpu="abacus"), "abacus"),
        (Settings(gpu="t4:3"), "1, 2 or 4"),
        (Settings(gpu="a100", machine_type="n1-standard-4"), "a2-highgpu"),
        (Settings(gpu="t4", zones=("the moon",)), "the moon"),
        (Settings(gpu="t4", ssh_from=("me",)), "'me' is not a range"),
        (Settings(gpu="t4", python="/p", packages=("jax",)), "either packages"),
        (Settings(image="i", disk_gb=5), "--image, --disk-size: a fleet on this computer"),
        (Settings(packages=("jax",)), "--package: a fleet on this computer"),
        (Settings(max_duration_s=60), "--max-duration: a fleet on this computer"),
        (Settings(external=False), "--iap: a fleet on this computer"),
    ],
)
def test_what_makes_no_sense(said: Settings, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        asked(said)
    assert refusal.value.hint or repetition(refusal.value) or next_lines(refusal.value)


def test_scopes_have_short_names() -> None:
    cloud = asked(Settings(provider="gce", scopes=("devstorage.read_only", "https://x/auth/y"))).cloud
    assert cloud is not None
    assert cloud.scopes == ("https://www.googleapis.com/auth/devstorage.read_only", "https://x/auth/y")


def test_a_misspelled_gpu_is_reported_before_that_the_fleet_is_of_another_provider() -> None:
    has = asked(Settings(workers=2))
    with pytest.raises(UsageError, match="t5"):
        asked(Settings(gpu="t5"), record=has)
    with pytest.raises(UsageError, match="already up with other settings"):
        asked(Settings(gpu="t4"), record=has)


# --- a fleet that is there --------------------------------------------------------------------------------------


def test_a_repeat_without_a_word_means_what_is_there_whatever_the_defaults_say_now() -> None:
    has = asked(Settings(gpu="t4:2", workers=3, spot=True, zones=("us-central1",)))
    assert asked(record=has) == has
    assert asked(defaults=Settings(workers=5, gpu="v100", project="other", packages=("jax",)), record=has) == has


@pytest.mark.parametrize(
    "said",
    [
        Settings(gpu="t4", machine_type="n1-standard-8", zones=("us-central1",), workers=2),
        Settings(gpu="t4"),
        Settings(gpu="t4:1"),
        Settings(provider="gce", spot=False, external=True),
    ],
)
def test_a_repeat_with_the_same_words_means_the_same(said: Settings) -> None:
    has = asked(Settings(gpu="t4", machine_type="n1-standard-8", zones=("us-central1",)))
    assert asked(said, record=has) == has


def test_a_local_fleet_repeats_too() -> None:
    has = FleetSpec("demo", "local", 2, python="/p")
    assert asked(record=has) == has
    with pytest.raises(UsageError, match="--image"):
        asked(Settings(image="i"), record=has)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Settings(workers=3), "3 workers asked for, 2 are up"),
        (Settings(provider="local"), "provider local asked for, it was made by gce"),
        (Settings(gpu="t4:2"), "2 nvidia-tesla-t4 asked for, its instances have 1 nvidia-tesla-t4"),
        (Settings(gpu="a100"), "1 nvidia-tesla-a100 asked for"),
        (Settings(spot=True), "spot instances asked for"),
        (Settings(packages=("jax",)), "packages jax asked for"),
        (Settings(zones=("us-west1",)), "zones us-west1 asked for"),
    ],
)
def test_another_word_is_a_difference_that_is_named(said: Settings, words: str) -> None:
    has = asked(Settings(gpu="t4"))
    with pytest.raises(UsageError, match="already up with other settings") as refusal:
        asked(said, record=has, ready=True)
    assert words in refusal.value.cause
