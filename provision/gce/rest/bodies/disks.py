"""Disks of instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.gce.options import GceOptions


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
