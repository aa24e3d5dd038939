"""Scheduling of instances: provisioning model, maintenance, lifetime, and reservations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

from provision.gce.catalog.machines import COMPACT, has_gpus, provisioning_model
from provision.gce.catalog.series import RESERVATION_BOUND, SPOT, STANDARD, can_migrate
from provision.gce.options import GceOptions

FIXED_END = "terminationTime"
"""Field with the time at which an instance ends, which a later start does not move; after it, a start is refused.

Source: https://cloud.google.com/compute/docs/instances/limit-vm-runtime.
"""

DISCARD_LOCAL_SSDS: Mapping[str, Any] = MappingProxyType({"onInstanceStopAction": {"discardLocalSsd": True}})
"""Field that instances with Local SSDs need if they are stopped at their end.

Source: https://cloud.google.com/sdk/gcloud/reference/compute/instances/create
(``--discard-local-ssds-at-termination-timestamp``).
"""


def scheduling(cloud: GceOptions, now: float) -> dict[str, Any]:
    """Return the scheduling; only some instances on demand without GPUs can migrate, maintenance stops the others.

    Instances that are placed close to each other cannot migrate.
    Instances on demand restart after maintenance, or after an error of their host. Each start begins the lifetime
    again, so that they do not restart if their cost is limited. `now` is as in `run_limit`.
    """
    model = provisioning_model(cloud)
    migrates = model == STANDARD and can_migrate(cloud.machine_type) and not has_gpus(cloud)
    migrates = migrates and cloud.placement != COMPACT
    values: dict[str, Any] = {
        "provisioningModel": model,
        "onHostMaintenance": "MIGRATE" if migrates else "TERMINATE",
        "automaticRestart": model == STANDARD and not cloud.max_cost_usd,
    }
    if cloud.delete_after_s:
        values |= run_limit(cloud.delete_after_s, now, is_fixed=cloud.has_fixed_end)
    if cloud.delete_after_s or model in (SPOT, RESERVATION_BOUND):
        values["instanceTerminationAction"] = "STOP" if cloud.unattended else "DELETE"
    if cloud.delete_after_s and cloud.unattended and cloud.has_local_ssds:
        values |= DISCARD_LOCAL_SSDS
    return values


def run_limit(seconds: int, now: float, *, is_fixed: bool) -> dict[str, Any]:
    """Return the field that ends an instance.

    Args:
        seconds: Its lifetime.
        now: Time of its start, in seconds since the epoch.
        is_fixed: The lifetime counts from `now`; otherwise from each start.
    """
    if is_fixed:
        return {FIXED_END: datetime.fromtimestamp(now + seconds, timezone.utc).isoformat(timespec="seconds")}
    return {"maxRunDuration": {"seconds": str(seconds)}}


def reservation_affinity(cloud: GceOptions) -> dict[str, Any]:
    """Return the field with the reservation that instances use; Flex-start VMs cannot use any.

    Source: https://cloud.google.com/compute/docs/instances/reservations-consume.
    """
    if cloud.flex_start:
        return {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    if not cloud.reservation:
        return {}
    return {
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [cloud.reservation],
        }
    }
