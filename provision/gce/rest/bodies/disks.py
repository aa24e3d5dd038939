"""Disks of instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD


def boot_disk(cloud: GceOptions, marks: Mapping[str, str]) -> dict[str, Any]:
    """Return the boot disk, which is deleted with its instance; `marks` are its labels."""
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": cloud.image,
            "diskSizeGb": str(cloud.disk_gb),
            "diskType": cloud.disk_type,
            "labels": dict(marks),
        },
    }


def local_ssds(cloud: GceOptions) -> list[dict[str, Any]]:
    """Return the Local SSDs that are attached; those that come with the machine type are not listed.

    Source: https://cloud.google.com/compute/docs/disks/add-local-ssd.
    """
    disk = {"type": "SCRATCH", "interface": "NVME", "autoDelete": True}
    return [{**disk, "initializeParams": {"diskType": LOCAL_SSD}} for _ in range(cloud.local_ssds)]
