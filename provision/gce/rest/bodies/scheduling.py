"""Scheduling of instances: provisioning model, maintenance, and lifetime."""

from __future__ import annotations

from typing import Any

from provision.gce.catalog.machines import has_gpus
from provision.gce.options import GceOptions


def scheduling(cloud: GceOptions) -> dict[str, Any]:
    """Return the scheduling; instances with GPUs and Spot VMs cannot migrate, so maintenance stops them."""
    stays = has_gpus(cloud) or cloud.spot
    values: dict[str, Any] = {
        "provisioningModel": "SPOT" if cloud.spot else "STANDARD",
        "onHostMaintenance": "TERMINATE" if stays else "MIGRATE",
        "automaticRestart": False,
    }
    if cloud.max_duration_s:
        values["maxRunDuration"] = {"seconds": str(cloud.max_duration_s)}
    if cloud.spot or cloud.max_duration_s:
        values["instanceTerminationAction"] = "DELETE"
    return values
