"""Reservations, and the checks of instances that select one by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.emulator import failures
from tests.emulator.blueprint import Blueprint, last
from tests.emulator.cloud import Cloud
from tests.emulator.creation import on_create
from tests.emulator.failures import Failure, invalid

Json = dict[str, Any]
Key = tuple[str, str]


@dataclass
class Reservations:
    """The reservations of the project by zone and name, without the number in use."""

    all: dict[Key, Json] = field(default_factory=dict)


@on_create
def check_reservation(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if the instance selects a reservation that does not exist, or that is not for such instances."""
    name = blueprint.reservation
    if not name:
        return
    at, given = "resource.reservationAffinity", str(blueprint.body["reservationAffinity"])
    path = f"projects/{cloud.project}/reservations/{name}"
    reservation = cloud.part(Reservations).all.get((blueprint.zone, name))
    if reservation is None:
        raise invalid(at, given, f"Specified reservations [{path}] do not exist.")
    if not reservation["specificReservationRequired"]:
        message = f"Specified reservations [{path}] can not be targeted as specificReservationRequired is not set"
        raise invalid(at, given, message)
    properties = reservation["specificReservation"]["instanceProperties"]
    gpus = [
        (last(each["acceleratorType"]), each["acceleratorCount"]) for each in properties.get("guestAccelerators", ())
    ]
    attached = [] if blueprint.machine_type.gpu else [(blueprint.gpu, blueprint.gpus)] * bool(blueprint.gpus)
    is_same_machine = properties["machineType"] == blueprint.machine_type.name
    has_same_gpus = gpus == attached or bool(blueprint.machine_type.gpu)
    has_same_disks = len(properties.get("localSsds", ())) == blueprint.local_ssds - blueprint.machine_type.local_ssds
    if not (is_same_machine and has_same_gpus and has_same_disks):
        raise invalid(at, given, f"The instance does not match the properties of the reservations [{path}].")


def reservation_shortage(cloud: Cloud, blueprint: Blueprint) -> Failure | None:
    """Return why the reservation that an instance selects has no room for it."""
    key = (blueprint.zone, blueprint.reservation)
    reservation = cloud.part(Reservations).all.get(key)
    if reservation is None or in_use(cloud.held(), key) < int(reservation["specificReservation"]["count"]):
        return None
    message = f"Specified reservations [{key[1]}] do not have available resources for the request."
    return failures.operation_failure("ZONE_RESOURCE_POOL_EXHAUSTED", message, 503)


def in_use(held: Iterable[Blueprint], key: Key) -> int:
    """Return the number of instances that consume a reservation."""
    return sum((each.zone, each.reservation) == key for each in held)
