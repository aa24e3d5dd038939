"""Check that a reservation fits the instances that will use it, without a call.

Source: https://cloud.google.com/compute/docs/instances/reservations-consume#requirements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.gce.catalog.machines import GPUS, describe, gpu_of
from provision.gce.catalog.series import series_of
from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted

Json = Mapping[str, Any]


def split_path(reservation: str) -> tuple[str, str]:
    """Return project and name of the reservation of an option; the project is empty for one of the own project."""
    words = reservation.split("/")
    return (words[1], words[3]) if len(words) > 1 else ("", reservation)


def reserved_zones(cloud: GceOptions, count: int, reservations: Sequence[Json], project: str) -> list[str]:
    """Return the zones whose reservation has room for new instances.

    Args:
        cloud: Options of the instances, resolved.
        count: Number of new instances.
        reservations: The reservations of the requested name, of which each zone may have one, in REST's JSON.
        project: Project of the reservations.

    Raises:
        ProviderError: no zone has one that fits.
    """
    name = split_path(cloud.reservation)[1]
    if not reservations:
        raise _refusal(
            ErrorKind.USAGE, project, f"reservation {name!r} does not exist in project {project}", "check the name"
        )
    problems = {_last(each["zone"]): _problem(cloud, count, each, project) for each in reservations}
    zones = [zone for zone, problem in problems.items() if problem is None]
    if not zones:
        raise next(problem for problem in problems.values() if problem is not None)
    return zones


def _problem(cloud: GceOptions, count: int, reservation: Json, project: str) -> ProviderError | None:
    """Return why a reservation cannot be used; None if it can."""
    label = f"reservation {reservation['name']!r} in {_last(reservation['zone'])}"
    specific = reservation.get("specificReservation", {})
    if reservation.get("status") != "READY":
        status = str(reservation.get("status", "unknown")).lower()
        return _refusal(ErrorKind.CAPACITY, project, f"{label} is not ready, but {status}", "wait until it is ready")
    if not reservation.get("specificReservationRequired"):
        return _refusal(
            ErrorKind.USAGE,
            project,
            f"{label} cannot be selected by name",
            "such a reservation is used by all matching instances, without --reservation",
            again={"--reservation": None},
        )
    if (fitting := _fitting_options(cloud, specific.get("instanceProperties", {}))) is not None:
        disks = fitting.get("--local-ssd")
        of_ssds = {"--local-ssd": f"{disks} {LOCAL_SSD}"} if disks else {}
        text = " and ".join(str(value) for value in {**fitting, **of_ssds}.values() if value)
        return _refusal(
            ErrorKind.USAGE,
            project,
            f"{label} is for instances with {text}, not for {describe(cloud)}",
            "request the machine of the reservation",
            again=fitting,
        )
    free = int(specific.get("count", 0)) - int(specific.get("inUseCount", 0))
    if free < count:
        return _refusal(
            ErrorKind.CAPACITY,
            project,
            f"{label} has room for {counted(max(0, free), 'instance')}, {count} requested",
            "wait until other instances are deleted, or enlarge the reservation",
        )
    return None


def _fitting_options(cloud: GceOptions, properties: Json) -> dict[str, str | bool | None] | None:
    """Return the options of the machine for which a reservation is, if `cloud` has other ones; otherwise None."""
    gpu = gpu_of(cloud)
    attached = {cloud.gpu: cloud.gpus} if gpu is not None and not gpu.built_in else {}
    accelerators = properties.get("guestAccelerators", ())
    listed = {_last(each["acceleratorType"]): int(each["acceleratorCount"]) for each in accelerators}
    machine_type = str(properties.get("machineType", ""))
    local_ssds = len(properties.get("localSsds", ())) if series_of(machine_type).local_ssds else 0
    same = machine_type == cloud.machine_type and local_ssds == cloud.local_ssds
    if same and (listed == attached or (cloud.gpus and not attached)):
        return None
    shorts = {each.accelerator: each.short for each in GPUS.values()}
    gpus = [f"{shorts.get(kind, kind)}:{number}" for kind, number in listed.items()]
    disks = {"--local-ssd": str(local_ssds) if local_ssds else None} if local_ssds != cloud.local_ssds else {}
    return {"--machine-type": machine_type, "--gpu": gpus[0] if gpus else None, **disks}


def _last(url: str) -> str:
    return str(url).rpartition("/")[2]


def _refusal(
    kind: ErrorKind, project: str, message: str, hint: str, again: Mapping[str, str | bool | None] | None = None
) -> ProviderError:
    steps = [("gcloud", "compute", "reservations", "list", "--project", project)]
    return ProviderError(kind, message, hint=hint, next_steps=steps, again=again)
