"""Machine types, accelerators, and disk types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.emulator.catalog.entries import entry
from tests.emulator.catalog.locations import AI_ZONES, ZONES
from tests.emulator.catalog.series import Series, series_of

Json = dict[str, Any]


_COMPACT = ("a2", "a3", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "h3", "h4d", "n2", "n2d", "z3")
"""Source: https://cloud.google.com/compute/docs/instances/placement-policies-overview."""


_LOCAL_SSDS = {
    "n1": ((96, (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)),),
    "n2": (
        (10, (1, 2, 4, 8, 16, 24)),
        (20, (2, 4, 8, 16, 24)),
        (40, (4, 8, 16, 24)),
        (80, (8, 16, 24)),
        (128, (16, 24)),
    ),
    "g2": ((16, (1,)), (24, (2,)), (32, (1,)), (48, (4,)), (96, (8,))),
    "a2-highgpu": ((12, (1, 2, 4, 8)), (24, (2, 4, 8)), (48, (4, 8)), (96, (8,))),
    "a2-megagpu": ((96, (8,)),),
}
"""Numbers of Local SSDs of machine types with up to a number of vCPUs; others, apart from those included, have none.

Source: https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds.
"""


@dataclass(frozen=True)
class MachineType:
    """A machine type.

    Attributes:
        name: ``n1-standard-4``.
        cpus: Virtual CPUs.
        memory_mb: Memory.
        gpu: Type of the GPUs it comes with; empty: none.
        gpus: How many of them.
        zones: Where it is available; empty: everywhere except in zones for AI.
    """

    name: str
    cpus: int
    memory_mb: int
    gpu: str = ""
    gpus: int = 0
    zones: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """``n1``."""
        return self.name.split("-", 1)[0]

    @property
    def series(self) -> Series:
        """Return its series."""
        return series_of(self.name)

    @property
    def compact(self) -> bool:
        """Return whether compact placement policies support it."""
        return self.family in _COMPACT

    @property
    def local_ssds(self) -> int:
        """Return the number of Local SSDs that it comes with, of 375 GB each."""
        stem = self.name.rpartition("-")[0]
        return {"a2-ultragpu": 1, "a3-highgpu": 2, "a3-megagpu": 2, "a3-ultragpu": 4, "a4-highgpu": 4}.get(
            stem, 0
        ) * self.gpus

    @property
    def local_ssd_counts(self) -> tuple[int, ...]:
        """Return the numbers of Local SSDs that a request may attach."""
        sizes = _LOCAL_SSDS.get(self.name.rpartition("-")[0]) or _LOCAL_SSDS.get(self.family, ())
        return (0, *next((counts for most, counts in sizes if self.cpus <= most), ()))

    def is_in(self, zone: str) -> bool:
        """Return whether it is available in `zone`."""
        return zone in self.zones if self.zones else zone not in AI_ZONES


@dataclass(frozen=True)
class Accelerator:
    """A GPU type.

    Attributes:
        name: ``nvidia-tesla-t4``.
        title: ``NVIDIA T4``.
        counts: How many of them may be attached to an N1; empty: it only comes with machine types of its own.
        max_cpus: Of the N1, for each attached one.
        quota: Name of the quota, without ``PREEMPTIBLE_``; empty: one that regions do not list.
        zones: Where it is available.
    """

    name: str
    title: str
    counts: tuple[int, ...]
    max_cpus: int
    quota: str
    zones: tuple[str, ...]


_L4_ZONES = (
    *("europe-west1-b", "europe-west1-c", "europe-west2-a", "europe-west2-b"),
    *("us-central1-a", "us-central1-b", "us-central1-c", "us-west4-a"),
)


_A100_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")


def _family(stem: str, sizes: tuple[int, ...], mb_per_cpu: int) -> list[MachineType]:
    return [MachineType(f"{stem}-{cpus}", cpus, cpus * mb_per_cpu) for cpus in sizes]


_ALL_MACHINE_TYPES = [
    MachineType("e2-micro", 2, 1024),
    MachineType("e2-small", 2, 2048),
    MachineType("e2-medium", 2, 4096),
    *_family("e2-standard", (2, 4, 8, 16), 4096),
    MachineType("n1-standard-1", 1, 3840),
    *_family("n1-standard", (2, 4, 8, 16, 32, 64, 96), 3840),
    *_family("n1-highmem", (2, 4, 8, 16, 32), 6656),
    *_family("n2-standard", (2, 4, 8, 16), 4096),
    *(
        machine
        for series in ("c3", "c4", "n4", "c4a", "n4a", "t2a", "n9a")
        for machine in _family(f"{series}-standard", (4, 8), 4096)
    ),
    MachineType("c3-standard-192-metal", 192, 786432, zones=("us-central1-a",)),
    MachineType("h3-standard-88", 88, 360448, zones=("europe-west1-b", "us-central1-a")),
    *(
        MachineType(f"z3-highmem-{size}", int(size.partition("-")[0]), 8192 * int(size.partition("-")[0]))
        for size in ("14-standardlssd", "44-highlssd", "88-standardlssd", "88", "88-highlssd", "176")
    ),
    MachineType("h4d-standard-192", 192, 737280, zones=("europe-west1-b", "us-central1-a")),
    *(
        MachineType(f"g2-standard-{cpus}", cpus, cpus * 4096, "nvidia-l4", gpus, _L4_ZONES)
        for cpus, gpus in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))
    ),
    *(
        MachineType(f"a2-highgpu-{gpus}g", 12 * gpus, 87040 * gpus, "nvidia-tesla-a100", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    *(
        MachineType(f"a3-highgpu-{gpus}g", 26 * gpus, 239616 * gpus, "nvidia-h100-80gb", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a2-megagpu-16g", 96, 1392640, "nvidia-tesla-a100", 16, _A100_ZONES),
    *(
        MachineType(f"a2-ultragpu-{gpus}g", 12 * gpus, 174080 * gpus, "nvidia-a100-80gb", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a3-megagpu-8g", 208, 1916928, "nvidia-h100-mega-80gb", 8, _A100_ZONES),
    MachineType("a3-ultragpu-8g", 224, 3023872, "nvidia-h200-141gb", 8, _A100_ZONES),
    MachineType("a4-highgpu-8g", 224, 4063232, "nvidia-b200", 8, ("us-central1-b", *AI_ZONES)),
    MachineType("a4x-highgpu-4g", 140, 905216, "nvidia-gb200", 4, ("us-central1-a",)),
    *(
        MachineType(f"g4-standard-{48 * gpus}", 48 * gpus, 184320 * gpus, "nvidia-rtx-pro-6000", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a9-newgpu-4g", 96, 786432, "nvidia-new-1tb", 4, _A100_ZONES),
    MachineType("ct6e-standard-1t", 44, 458752, "ct6e", 1, ("us-central1-b",)),
]


MACHINE_TYPES = {machine.name: machine for machine in _ALL_MACHINE_TYPES}


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("nvidia-l4", "NVIDIA L4", (), 0, "NVIDIA_L4_GPUS", _L4_ZONES),
        Accelerator("nvidia-tesla-a100", "NVIDIA A100 40GB", (), 0, "NVIDIA_A100_GPUS", _A100_ZONES),
        Accelerator(
            "nvidia-tesla-p100",
            "NVIDIA Tesla P100",
            (1, 2, 4),
            16,
            "NVIDIA_P100_GPUS",
            ("europe-west1-b", "europe-west1-d", "us-central1-c", "us-central1-f"),
        ),
        Accelerator("nvidia-h100-80gb", "NVIDIA H100 80GB", (), 0, "", _A100_ZONES),
        Accelerator("nvidia-h100-mega-80gb", "NVIDIA H100 MEGA", (), 0, "", _A100_ZONES),
        Accelerator("nvidia-a100-80gb", "NVIDIA A100 80GB", (), 0, "NVIDIA_A100_80GB_GPUS", _A100_ZONES),
        Accelerator("nvidia-h200-141gb", "NVIDIA H200 141GB", (), 0, "", _A100_ZONES),
        Accelerator("nvidia-b200", "NVIDIA B200", (), 0, "", ("us-central1-b", *AI_ZONES)),
        Accelerator("nvidia-gb200", "NVIDIA GB200", (), 0, "", ("us-central1-a",)),
        Accelerator("nvidia-rtx-pro-6000", "NVIDIA RTX PRO 6000", (), 0, "", _A100_ZONES),
        Accelerator("nvidia-new-1tb", "A GPU of tomorrow", (), 0, "", _A100_ZONES),
        Accelerator("ct6e", "TPU v6e", (), 0, "", ("us-central1-b",)),
        Accelerator(
            "nvidia-tesla-t4",
            "NVIDIA T4",
            (1, 2, 4),
            48,
            "NVIDIA_T4_GPUS",
            tuple(zone for zone in ZONES if zone not in AI_ZONES),
        ),
        Accelerator("nvidia-tesla-v100", "NVIDIA V100", (1, 2, 4, 8), 12, "NVIDIA_V100_GPUS", _A100_ZONES),
    )
}


DISK_TYPES = ("pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced")


def machine_type_body(base: str, zone: str, machine: MachineType) -> Json:
    """Return a MachineType."""
    body = {
        **entry("machineType", machine.name),
        "description": f"{machine.cpus} vCPUs, {machine.memory_mb / 1024:g} GB RAM",
        "guestCpus": machine.cpus,
        "memoryMb": machine.memory_mb,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": machine.name in ("e2-micro", "e2-small", "e2-medium"),
        "architecture": machine.series.architecture,
        "zone": zone,
        "selfLink": f"{base}/zones/{zone}/machineTypes/{machine.name}",
    }
    if machine.gpu:
        body["accelerators"] = [{"guestAcceleratorType": machine.gpu, "guestAcceleratorCount": machine.gpus}]
    return body


def accelerator_body(base: str, zone: str, accelerator: Accelerator) -> Json:
    """Return an AcceleratorType."""
    return {
        **entry("acceleratorType", accelerator.name),
        "description": accelerator.title,
        "maximumCardsPerInstance": max(accelerator.counts, default=8),
        "zone": f"{base}/zones/{zone}",
        "selfLink": f"{base}/zones/{zone}/acceleratorTypes/{accelerator.name}",
    }


def disk_type_body(base: str, zone: str, name: str) -> Json:
    """Return a DiskType."""
    return {
        **entry("diskType", name),
        "validDiskSize": "10GB-65536GB",
        "defaultDiskSizeGb": "100",
        "zone": f"{base}/zones/{zone}",
        "selfLink": f"{base}/zones/{zone}/diskTypes/{name}",
    }
