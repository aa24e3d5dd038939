"""The fleet that `fleet up` creates or repairs if the hosts exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.fleets.plan import UpRequest, resolve_spec
from fleet.settings import Settings
from fleet.state import FleetRecord
from provision.model import FleetSpec, Instance, InstanceState
from provision.static.options import StaticOptions
from tests.settings import settings

SILENCE = settings()


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.txt"
    path.write_text("gpu1\ngpu2\ngpu3\n")
    return str(path)


def asked(given: Settings = SILENCE, defaults: Settings = SILENCE, record: FleetRecord | None = None) -> FleetSpec:
    return resolve_spec(UpRequest("demo", given, defaults), record)


def up(spec: FleetSpec, *hosts: str) -> FleetRecord:
    """Return the record of a fleet that is up."""
    instances = [
        Instance(f"worker-{index}", "demo", host, InstanceState.RUNNING, host) for index, host in enumerate(hosts)
    ]
    return FleetRecord(spec, 1.0, instances=tuple(instances))


def test_an_inventory_means_all_of_its_hosts(inventory: str) -> None:
    spec = FleetSpec("demo", "static", 3, options=StaticOptions(inventory=inventory))
    assert asked(settings(inventory=inventory)) == spec
    assert asked(defaults=settings(provider="static", inventory=inventory)) == spec
    assert asked(settings(inventory=inventory, workers=2)).workers == 2
    assert asked(settings(inventory=inventory, limit="gpu2:gpu3")) == replace(
        spec, workers=2, options=StaticOptions(inventory=inventory, limit="gpu2:gpu3")
    )


def test_settings_of_another_inventory_in_fleet_toml_are_ignored(inventory: str) -> None:
    defaults = settings(provider="static", inventory="/etc/other", limit="none", workers=1)
    assert asked(settings(inventory=inventory), defaults) == FleetSpec(
        "demo", "static", 3, options=StaticOptions(inventory=inventory)
    )
    rented = settings(provider="gce", gpu="t4", workers=8)
    assert asked(settings(inventory=inventory), rented) == FleetSpec(
        "demo", "static", 3, options=StaticOptions(inventory=inventory)
    )


def test_a_file_that_changed_is_not_passed_over_where_it_is_named_again(inventory: str) -> None:
    record = up(FleetSpec("demo", "static", 3, options=StaticOptions(inventory=inventory)), "gpu1", "gpu2", "gpu3")
    Path(inventory).write_text("gpu3\ngpu2\ngpu1\n")
    with pytest.raises(UsageError) as error:
        asked(settings(inventory=inventory), record=record)
    assert error.value.cause == "hosts gpu3, gpu2, gpu1 requested, the fleet has gpu1, gpu2, gpu3"
    Path(inventory).write_text("gpu1\n")
    with pytest.raises(UsageError) as error:
        asked(settings(inventory=inventory), record=record)
    assert "1 worker requested, the fleet has 3" in error.value.cause
