"""The methods of reservations."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog import locations, machines
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, Refusal, already_exists, invalid, not_found
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.registry import method, starting
from tests.emulator.reservations import Key, Reservations, in_use

Json = dict[str, Any]


@method("compute.reservations.get")
def get_reservation(cloud: Cloud, call: Call) -> Json:
    return _shown(cloud, _key(cloud, call))


@method("compute.reservations.list")
def list_reservations(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [_shown(cloud, key) for key in cloud.part(Reservations).all if key[0] == call.zone])


@method("compute.reservations.aggregatedList")
def aggregated_reservations(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"zones/{zone}": [] for zone in locations.ZONES}
    for key in sorted(cloud.part(Reservations).all):
        scoped[f"zones/{key[0]}"].append(_shown(cloud, key))
    return aggregated(cloud, call, scoped)


@starting("compute.reservations.insert")
def insert_reservation(cloud: Cloud, call: Call) -> Json:
    zone = existing_name(cloud, call, "zone", locations.ZONES, "zones")
    name, specific = call.body["name"], call.body.get("specificReservation", {})
    if (zone, name) in cloud.part(Reservations).all:
        raise already_exists(f"projects/{cloud.project}/zones/{zone}/reservations/{name}")
    machine_type = specific.get("instanceProperties", {}).get("machineType", "")
    if machine_type not in machines.MACHINE_TYPES:
        raise invalid("resource.specificReservation.instanceProperties.machineType", machine_type, "It is unknown.")
    target = f"{cloud.base}/zones/{zone}/reservations/{name}"
    made: Json = {
        **{key: call.body[key] for key in ("name", "description", "specificReservation") if key in call.body},
        "kind": "compute#reservation",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "specificReservationRequired": bool(call.body.get("specificReservationRequired")),
        "status": "READY",
        "zone": f"{cloud.base}/zones/{zone}",
        "selfLink": target,
    }

    def begin() -> Failure | None:
        cloud.part(Reservations).all[zone, name] = made
        return None

    return launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.reservations.delete")
def delete_reservation(cloud: Cloud, call: Call) -> Json:
    key = _key(cloud, call)
    made = cloud.part(Reservations).all[key]
    if in_use(cloud.held(), key):
        raise Refusal(400, "resourceInUseByAnotherResource", f"The reservation '{key[1]}' is in use.")

    def begin() -> Failure | None:
        cloud.part(Reservations).all.pop(key, None)
        return None

    return launch(cloud, call, "delete", made["selfLink"], begin, made["id"])


def _shown(cloud: Cloud, key: Key) -> Json:
    reservation = cloud.part(Reservations).all[key]
    specific = {**reservation["specificReservation"], "inUseCount": str(in_use(cloud.held(), key))}
    return {**reservation, "specificReservation": specific}


def _key(cloud: Cloud, call: Call) -> Key:
    key = (call.zone, call.path["reservation"])
    if key not in cloud.part(Reservations).all:
        raise not_found(f"projects/{cloud.project}/zones/{key[0]}/reservations/{key[1]}")
    return key
