"""What `fleet up` is taken to mean where hosts exist already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.fleets.resolution import UpRequest, provider_of, wanted
from fleet.settings import Settings
from fleet.state import FleetRecord
from provision.model import FleetSpec, Instance, InstanceState
from tests.next_steps import repetition

SILENCE = Settings()


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.txt"
    path.write_text("gpu1\ngpu2\ngpu3\n")
    return str(path)


def asked(said: Settings = SILENCE, defaults: Settings = SILENCE, record: FleetRecord | None = None) -> FleetSpec:
    return wanted(UpRequest("demo", said, defaults), record)


def up(spec: FleetSpec, *hosts: str) -> FleetRecord:
    """A fleet that is up."""
    instances = [
        Instance(f"worker-{index}", "demo", host, InstanceState.RUNNING, host) for index, host in enumerate(hosts)
    ]
    return FleetRecord(spec, 1.0, instances=tuple(instances))


def test_an_inventory_means_all_of_its_hosts(inventory: str) -> None:
    spec = FleetSpec("demo", "static", 3, inventory=inventory)
    assert asked(Settings(inventory=inventory)) == spec
    assert asked(defaults=Settings(provider="static", inventory=inventory)) == spec
    assert asked(Settings(inventory=inventory, workers=2)).workers == 2
    assert asked(Settings(inventory=inventory, limit="gpu2:gpu3")) == replace(spec, workers=2, limit="gpu2:gpu3")


def test_what_fleet_toml_says_of_another_inventory_does_not_count(inventory: str) -> None:
    defaults = Settings(provider="static", inventory="/etc/other", limit="none", workers=1)
    assert asked(Settings(inventory=inventory), defaults) == FleetSpec("demo", "static", 3, inventory=inventory)
    rented = Settings(provider="gce", gpu="t4", workers=8)
    assert asked(Settings(inventory=inventory), rented) == FleetSpec("demo", "static", 3, inventory=inventory)


def test_the_limit_of_the_command_line_goes_with_the_inventory_of_fleet_toml(inventory: str) -> None:
    defaults = Settings(provider="static", inventory=inventory, limit="gpu1")
    assert asked(Settings(limit="gpu2:gpu3"), defaults).workers == 2


def test_packages_can_be_installed_there(inventory: str) -> None:
    assert asked(Settings(inventory=inventory)).packages == ()
    assert asked(Settings(inventory=inventory, packages=("jax",))).packages == ("jax",)
    with pytest.raises(UsageError, match="either packages are installed"):
        asked(Settings(inventory=inventory, packages=("jax",), python="/opt/python"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (Settings(provider="static"), "no inventory of hosts is given"),
        (Settings(provider="local", limit="gpu"), "--limit names hosts that exist already"),
        (Settings(provider="gce", inventory="/hosts"), "--inventory names hosts that exist already"),
        (Settings(inventory="/hosts", image="i"), "--image: a fleet of hosts that exist has no such setting"),
        (Settings(inventory="/no/such/file"), "/no/such/file cannot be read"),
        (Settings(workers=0, inventory="HERE"), "at least one worker"),
    ],
)
def test_what_makes_no_sense_is_refused(inventory: str, said: Settings, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        asked(replace(said, inventory=inventory) if said.inventory == "HERE" else said)
    assert error.value.hint or repetition(error.value)


def test_a_fleet_keeps_its_hosts(inventory: str) -> None:
    spec = FleetSpec("demo", "static", 2, inventory=inventory, limit="gpu1:gpu2")
    record = up(spec, "gpu1", "gpu2")
    assert asked(record=record) == spec
    assert asked(defaults=Settings(inventory="/other"), record=record) == spec
    assert asked(Settings(inventory=inventory), record=record) == spec
    Path(inventory).unlink()
    assert asked(record=record) == spec


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (Settings(workers=1), "1 worker asked for, 2 are up"),
        (Settings(limit="gpu2:gpu3"), "--limit 'gpu2:gpu3' asked for, it was made with ''"),
        (Settings(provider="local"), "provider local asked for, it was made by static"),
    ],
)
def test_a_fleet_that_is_up_is_not_made_into_another(inventory: str, said: Settings, cause: str) -> None:
    record = up(FleetSpec("demo", "static", 2, inventory=inventory), "gpu1", "gpu2")
    with pytest.raises(UsageError, match="already up with other settings") as error:
        asked(said, record=record)
    assert cause in error.value.cause


def test_a_file_that_changed_is_not_passed_over_where_it_is_named_again(inventory: str) -> None:
    record = up(FleetSpec("demo", "static", 3, inventory=inventory), "gpu1", "gpu2", "gpu3")
    Path(inventory).write_text("gpu3\ngpu2\ngpu1\n")
    with pytest.raises(UsageError) as error:
        asked(Settings(inventory=inventory), record=record)
    assert error.value.cause == "the hosts gpu3, gpu2, gpu1 asked for, it has gpu1, gpu2, gpu3"
    Path(inventory).write_text("gpu1\n")
    with pytest.raises(UsageError) as error:
        asked(Settings(inventory=inventory), record=record)
    assert "1 worker asked for, 3 are up" in error.value.cause


def test_an_inventory_on_a_fleet_of_another_kind_is_refused(inventory: str) -> None:
    with pytest.raises(UsageError, match="already up with other settings"):
        asked(Settings(inventory=inventory), record=FleetRecord(FleetSpec("demo", "local", 2), 1.0))


def test_the_provider_that_is_meant() -> None:
    assert provider_of(Settings(inventory="/x"), "gce") == "static"
    assert provider_of(Settings(), "static") == "static"
    assert provider_of(Settings(), None) == "local"
