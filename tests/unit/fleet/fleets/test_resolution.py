"""The fleet that `fleet up` creates or repairs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.fleets.plan import GPU_PACKAGES, UpRequest, gpu_package_notes, resolve_spec
from fleet.settings import Settings
from fleet.state import FleetRecord
from fleet.steps import Again
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Instance, InstanceState
from provision.options import declarations
from provision.static.options import StaticOptions
from tests.next_steps import repetition
from tests.settings import settings
from tests.unit.fleet.clouds import host

SILENCE = settings()


def asked(
    given: Settings = SILENCE, defaults: Settings = SILENCE, record: FleetSpec | None = None, *, ready: bool = False
) -> FleetSpec:
    hosts = (host("worker-0"),) if ready else ()
    return resolve_spec(UpRequest("demo", given, defaults), FleetRecord(record, 1.0, hosts) if record else None)


def test_each_option_that_only_compute_engine_has_selects_it() -> None:
    for field, declared in declarations(GceOptions).items():
        assert settings(**{field: False}).exclusive == {"gce": [declared.name]}
        with pytest.raises(UsageError, match=f"provider 'local' does not support {declared.name}") as refusal:
            asked(settings(provider="local", **{field: False}))
        assert refusal.value.next_steps[0] == Again({"--provider": "gce"})
    for given in (settings(anywhere=True), settings(spot=False), settings(provider="gce")):
        assert asked(given, settings(provider="local")).provider == "gce"


def test_options_of_several_providers_are_refused_unless_one_is_selected() -> None:
    given = settings(inventory="/hosts", spot=True, image="i")
    with pytest.raises(UsageError) as refusal:
        asked(given)
    assert refusal.value.message == (
        "options of several providers: --spot, --image select Compute Engine, --inventory selects existing hosts"
    )
    assert refusal.value.next_steps == (Again({"--inventory": None}), Again({"--image": None, "--spot": None}))
    with pytest.raises(UsageError, match="provider 'static' does not support --spot, --image") as refusal:
        asked(replace(given, provider="static"))
    assert refusal.value.next_steps == (Again({"--provider": "gce"}), Again({"--image": None, "--spot": None}))
    assert settings(limit="gpu").exclusive == {}


def test_tables_of_several_providers_require_that_one_is_selected() -> None:
    tables = settings(inventory="/hosts", spot=True)
    with pytest.raises(UsageError, match=r"tables \[gce\] and \[static\] select different providers") as refusal:
        asked(defaults=tables)
    assert refusal.value.next_steps == (Again({"--provider": "gce"}), Again({"--provider": "static"}))
    for given, provider in ((settings(provider="local"), "local"), (settings(gpu="t4"), "gce")):
        made = asked(given, tables)
        assert made.provider == provider
        assert made.options.spot == (provider == "gce")
        assert asked(defaults=tables, record=made) == made


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (settings(gpu="t5:2"), {"--gpu": "t4:2"}),
        (settings(gpu="t4:"), {"--gpu": "t4:1"}),
        (settings(gpu="a100:2", machine_type="a2-highgpu-1g"), {"--machine-type": "a2-highgpu-2g"}),
        (settings(zones=("the moon",)), {"--zone": None}),
        (settings(gpu="t4", flex_start=True, wait_s=9000), {"--wait": "2h"}),
        (settings(provider="gce", scopes=("No sense",)), {"--scopes": None}),
        (replace(settings(gpu="t4"), packages=("numpy\nkeras",)), {"--package": None}),
        (settings(bucket="training-data/x"), {"--bucket": "gs://training-data"}),
        (settings(project="My Project"), None),
    ],
)
def test_an_invalid_value_is_reported_with_a_command_that_works(
    given: Settings, again: dict[str, str] | None
) -> None:
    with pytest.raises(UsageError) as refusal:
        asked(given)
    assert refusal.value.next_steps
    step = repetition(refusal.value)
    assert (step.change if step else None) == again


# --- an existing fleet ------------------------------------------------------------------------------------------


def test_a_repetition_keeps_the_fleet_whatever_the_defaults_are_now() -> None:
    has = asked(settings(gpu="t4:2", workers=3, spot=True, zones=("us-central1",)))
    assert asked(record=has) == has
    assert asked(defaults=settings(workers=5, gpu="v100", project="other", packages=("jax",)), record=has) == has
    for workers in (1, 5):  # only the option changes the number of workers
        assert asked(settings(workers=workers), record=has, ready=True) == replace(has, workers=workers)


@pytest.mark.parametrize(
    ("given", "words", "ready"),
    [
        (settings(provider="local"), "provider local requested, the fleet was created by gce", True),
        (settings(gpu="a100"), "GPU type nvidia-tesla-a100 requested, the fleet has nvidia-tesla-t4", True),
        (settings(workers=5, spot=True), "spot yes requested, the fleet has no", True),
        (settings(packages=("jax",)), "packages jax requested", True),
        (settings(zones=("us-west1",)), "zones us-west1 requested", True),
        (settings(workers=5), "5 workers requested, the fleet has 2", False),  # its creation has not finished
    ],
)
def test_a_different_option_is_reported(given: Settings, words: str, ready: bool) -> None:
    has = asked(settings(gpu="t4"))
    with pytest.raises(UsageError, match="already up with other settings") as refusal:
        asked(given, record=has, ready=ready)
    assert refusal.value.cause == words if given.workers else words in refusal.value.cause


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (GPU_PACKAGES, ""),
        (("Tensorflow[horovod] >=2",), "tensorflow[and-cuda] installs them"),
        (("jax[cuda12]",), "--package replaces TensorFlow"),
    ],
)
def test_packages_with_which_tensorflow_may_not_use_the_gpus(packages: tuple[str, ...], words: str) -> None:
    spec = FleetSpec("demo", "gce", 2, packages=packages, options=GceOptions(gpu="t4", gpus=1))
    assert words in " ".join(gpu_package_notes(spec))
    assert bool(gpu_package_notes(spec)) == bool(words)
    assert gpu_package_notes(replace(spec, options=GceOptions())) == ()


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_a_local_fleet_uses_the_active_environment_if_it_has_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert asked(settings()).python == ""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert asked(settings()).python == str(python)
    assert asked(settings(python="/usr/bin/python3")).python == "/usr/bin/python3"
    of_file = replace(settings(workers=3), file=tmp_path / "fleet.toml")
    assert asked(settings(), of_file).python_source == ""  # the file does not name this program
    assert asked(settings(provider="gce")).python == ""


def test_options_without_an_effect_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a\nb\n")
    both = ("--retry-until-up", "--accept-new")
    for given, wrong in ((Settings(), both), (settings(inventory="hosts"), both[:1])):
        with pytest.raises(UsageError, match="cannot be used with") as error:
            resolve_spec(UpRequest("demo", given, Settings(), accept_new=True, retry_until_up=True), None)
        assert error.value.next_steps == (Again(dict.fromkeys(wrong)),)
    resolve_spec(UpRequest("demo", Settings(provider="gce"), Settings(), retry_until_up=True), None)


# --- hosts that exist ---------------------------------------------------------------------------------------------


def test_an_inventory_means_all_of_its_hosts_and_other_settings_of_fleet_toml_are_ignored(tmp_path: Path) -> None:
    inventory = str(tmp_path / "hosts.txt")
    Path(inventory).write_text("gpu1\ngpu2\ngpu3\n")
    spec = FleetSpec("demo", "static", 3, options=StaticOptions(inventory=inventory))
    named = settings(inventory=inventory)
    assert asked(defaults=settings(provider="static", inventory=inventory)) == spec
    for defaults in (
        SILENCE,
        settings(provider="static", inventory="/etc/other", limit="none", workers=1),
        settings(provider="gce", gpu="t4", workers=8),
    ):
        assert asked(named, defaults) == spec
    assert asked(settings(inventory=inventory, workers=2)).workers == 2
    assert asked(settings(inventory=inventory, limit="gpu2:gpu3")) == replace(
        spec, workers=2, options=StaticOptions(inventory=inventory, limit="gpu2:gpu3")
    )
    instances = [
        Instance(f"worker-{number - 1}", "demo", f"gpu{number}", InstanceState.RUNNING, f"gpu{number}")
        for number in (1, 2, 3)
    ]
    record = FleetRecord(spec, 1.0, instances=tuple(instances))
    for text, cause in (  # the file has changed, and is named again
        ("gpu3\ngpu2\ngpu1\n", "hosts gpu3, gpu2, gpu1 requested, the fleet has gpu1, gpu2, gpu3"),
        ("gpu1\n", "1 worker requested, the fleet has 3"),
    ):
        Path(inventory).write_text(text)
        with pytest.raises(UsageError) as error:
            resolve_spec(UpRequest("demo", named, SILENCE), record)
        assert cause in error.value.cause
