"""The methods of machine types, accelerator types, and disk types."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog import locations, machines
from tests.emulator.cloud import Call, Cloud
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name
from tests.emulator.registry import method

Json = dict[str, Any]


@method("compute.machineTypes.get")
def get_machine_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "machineType")


@method("compute.machineTypes.list")
def list_machine_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _machine_types(cloud, call.zone))


@method("compute.machineTypes.aggregatedList")
def aggregated_machine_types(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"zones/{zone}": _machine_types(cloud, zone) for zone in locations.ZONES})


@method("compute.acceleratorTypes.get")
def get_accelerator_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "acceleratorType")


@method("compute.acceleratorTypes.list")
def list_accelerator_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _accelerators(cloud, call.zone))


@method("compute.acceleratorTypes.aggregatedList")
def aggregated_accelerator_types(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"zones/{zone}": _accelerators(cloud, zone) for zone in locations.ZONES})


@method("compute.diskTypes.get")
def get_disk_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "diskType")


@method("compute.diskTypes.list")
def list_disk_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _disk_types(cloud, call.zone))


def _machine_types(cloud: Cloud, zone: str) -> list[Json]:
    return [
        machines.machine_type_body(cloud.base, zone, machine)
        for machine in machines.MACHINE_TYPES.values()
        if machine.is_in(zone)
    ]


def _accelerators(cloud: Cloud, zone: str) -> list[Json]:
    return [
        machines.accelerator_body(cloud.base, zone, accelerator)
        for accelerator in machines.ACCELERATORS.values()
        if zone in accelerator.zones
    ]


def _disk_types(cloud: Cloud, zone: str) -> list[Json]:
    return [machines.disk_type_body(cloud.base, zone, name) for name in machines.DISK_TYPES]


def _catalogued(cloud: Cloud, call: Call, parameter: str) -> Json:
    """The entry of a zone's catalogue that the path names."""
    zone = existing_name(cloud, call, "zone", locations.ZONES, "zones")
    of_zone = {"machineType": _machine_types, "acceleratorType": _accelerators, "diskType": _disk_types}[parameter]
    entries = {entry["name"]: entry for entry in of_zone(cloud, zone)}
    return entries[existing_name(cloud, call, parameter, entries, f"zones/{zone}/{parameter}s")]
