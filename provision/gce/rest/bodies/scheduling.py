"""Scheduling of instances: provisioning model, maintenance, lifetime, and reservations."""

from __future__ import annotations

from typing import Any

from provision.gce.catalog.machines import has_gpus, provisioning_model
from provision.gce.catalog.series import STANDARD
from provision.gce.options import GceOptions


def scheduling(cloud: GceOptions) -> dict[str, Any]:
    """Return the scheduling; only instances on demand without GPUs can migrate, maintenance stops the others."""
    model = provisioning_model(cloud)
    migrates = model == STANDARD and not has_gpus(cloud)
    values: dict[str, Any] = {
        "provisioningModel": model,
        "onHostMaintenance": "MIGRATE" if migrates else "TERMINATE",
        "automaticRestart": False,
    }
    if cloud.max_duration_s:
        values["maxRunDuration"] = {"seconds": str(cloud.max_duration_s)}
    if cloud.spot or cloud.max_duration_s:
        values["instanceTerminationAction"] = "DELETE"
    return values


def reservation_affinity(cloud: GceOptions) -> dict[str, Any]:
    """Return the field with the reservations that instances may use; Flex-start VMs cannot use any."""
    return {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}} if cloud.flex_start else {}
