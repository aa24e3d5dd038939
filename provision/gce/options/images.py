"""Options of the boot image and its disk."""

from __future__ import annotations

from dataclasses import dataclass

from provision.gce.options.groups import GENERAL
from provision.options import COUNT, TEXT, option


@dataclass(frozen=True)
class ImageOptions:
    """Options of the boot image and its disk.

    Attributes:
        image: Boot image, ``projects/P/global/images/family/F``; empty: the default.
        disk_gb: Size of the boot disk.
        disk_type: Type of the boot disk, ``pd-balanced``; empty: the default for the machine type.
    """

    image: str = option(
        "",
        TEXT,
        "image",
        metavar="IMAGE",
        help="Boot image, e.g. projects/P/global/images/family/F.",
        default="Ubuntu 24.04; with GPUs a Deep Learning image",
        group=GENERAL,
    )
    disk_gb: int = option(
        100,
        COUNT,
        "disk-size",
        metavar="GB",
        help="Size of the boot disk.",
        label="disk size in GB",
        group=GENERAL,
    )
    disk_type: str = option(
        "",
        TEXT,
        "disk-type",
        metavar="TYPE",
        help="Type of the boot disk, e.g. pd-standard.",
        default="chosen for the machine type",
        group=GENERAL,
    )
