"""Options of the machines and their zones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.gce.options.groups import GENERAL, MONEY_AND_TIME
from provision.options import COUNT, DURATION, FLAG, MONEY, TEXT, TEXTS, option

LOCAL_SSD, LOCAL_SSD_GB = "local-ssd", 375
"""Disk type of Local SSDs, also the name of the result of mounting them; and the size of an attached one."""
LOCAL_SSD_PATH = "/mnt/localssd"
"""Mount point of the Local SSDs of an instance, which provision/gce/rest/bodies/startup.sh mounts."""
_WITH_LOCAL_SSDS = re.compile(r"(?:a2-ultragpu|a3|a4x?|z3)-|.*lssd\b", re.ASCII)
"""Machine types that come with Local SSDs: https://cloud.google.com/compute/docs/disks/add-local-ssd."""


@dataclass(frozen=True)
class MachineOptions:
    """Options of the machines and their zones.

    Attributes:
        zones: Zones (``us-central1-a``) or regions (``us-central1``) in order of preference; empty: by price.
        anywhere: Without `zones`, zones of all continents are tried; otherwise only those of the cheapest zone's.
        max_price_usd_h: Limit of the price of one instance in US dollars an hour; 0: none.
        machine_type: ``n1-standard-4``; empty: the default for the GPU.
        gpu: Type of the GPUs, ``nvidia-tesla-t4``; empty: none.
        gpus: GPUs of each instance.
        spot: Use Spot VMs.
        placement: ``compact``: the instances are close to each other; ``any``: anywhere in the zone; empty: the
            default for the machine type.
        flex_start: Use Flex-start VMs.
        reservation: Reservation that the instances use, or its path ``projects/P/reservations/NAME``; empty: none.
        wait_s: Time for which Compute Engine may queue a request for Flex-start VMs; 0: it does not.
        local_ssds: Local SSDs of each instance, in addition to those that its machine type comes with.
    """

    zones: tuple[str, ...] = option(
        (),
        TEXTS,
        "zones",
        flags=("--zone",),
        metavar="ZONE",
        help="Zone or region to try; repeatable, tried in order.",
        default="cheapest first",
        group=GENERAL,
    )
    anywhere: bool = option(
        False,
        FLAG,
        "anywhere",
        help="Try zones on all continents, not only on the one with the cheapest zone.",
        label="all continents:",
        group=GENERAL,
        fixed=False,
    )
    max_price_usd_h: float = option(
        0.0,
        MONEY,
        "max-price",
        metavar="USD",
        help="Limit of the price of one worker per hour, with disk and address; 0 disables it.",
        default="no limit",
        label="limit of the price",
        group=MONEY_AND_TIME,
        fixed=False,
    )
    machine_type: str = option(
        "",
        TEXT,
        "machine-type",
        metavar="TYPE",
        help="Machine type, e.g. n1-standard-8.",
        default="chosen for the GPU",
        group=GENERAL,
    )
    gpu: str = option(
        "",
        TEXT,
        "gpu",
        metavar="TYPE[:N]",
        help="GPUs per worker, e.g. t4 or t4:2.",
        default="none",
        label="GPU type",
        group=GENERAL,
    )
    spot: bool = option(
        False,
        FLAG,
        "spot",
        help="Use Spot VMs: cheaper, but may be preempted at any time.",
        group=GENERAL,
    )
    placement: str = option(
        "",
        TEXT,
        "placement",
        metavar="compact|any",
        help="Place the instances close to each other, or anywhere in the zone.",
        default="compact for A3 and A4",
        group=GENERAL,
    )
    flex_start: bool = option(
        False,
        FLAG,
        "flex-start",
        help="Use Flex-start VMs: cheaper GPUs for up to 7 days that are not preempted.",
        label="Flex-start VMs:",
        group=GENERAL,
    )
    wait_s: int = option(
        0,
        DURATION,
        "wait",
        metavar="TIME",
        help="Time for which Compute Engine queues a request for Flex-start VMs, up to 2h.",
        default="not queued",
        label="time in the queue",
        group=GENERAL,
        fixed=False,
    )
    reservation: str = option(
        "",
        TEXT,
        "reservation",
        metavar="NAME",
        help="Reservation to use, or the path of a shared one, projects/P/reservations/NAME.",
        group=GENERAL,
    )
    local_ssds: int = option(
        0,
        COUNT,
        "local-ssd",
        metavar="N",
        help="Local SSDs per worker, of 375 GB each, mounted at /mnt/localssd.",
        label="number of Local SSDs",
        group=GENERAL,
    )

    @property
    def includes_local_ssds(self) -> bool:
        """Return whether the machine type comes with Local SSDs; False if only Compute Engine knows."""
        return _WITH_LOCAL_SSDS.match(self.machine_type) is not None

    @property
    def has_local_ssds(self) -> bool:
        """Return whether the instances have Local SSDs, attached or included."""
        return self.local_ssds > 0 or self.includes_local_ssds
