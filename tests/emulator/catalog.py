"""The catalog: some regions, their zones, machine types, accelerators, images, and default quotas."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

CREATED = "2026-01-05T08:00:00.000-08:00"

REGIONS = {
    "europe-west1": ("europe-west1-b", "europe-west1-c", "europe-west1-d"),
    "europe-west2": ("europe-west2-a", "europe-west2-b"),
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-central1-ai1a"),
    "us-west4": ("us-west4-a", "us-west4-b"),
}
AI_ZONES = ("us-central1-ai1a",)
"""Zones with only the newest accelerators."""
ZONES = {zone: region for region, zones in REGIONS.items() for zone in zones}


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
        spot_only: Whether it is not sold on demand.
        disks: Supported disk types; empty: all but hyperdisks.
    """

    name: str
    cpus: int
    memory_mb: int
    gpu: str = ""
    gpus: int = 0
    zones: tuple[str, ...] = ()
    spot_only: bool = False
    disks: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """``n1``."""
        return self.name.split("-", 1)[0]

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


@dataclass(frozen=True)
class Image:
    """A boot image.

    Attributes:
        project: The project that owns it.
        family: ``debian-12``.
        name: ``debian-12-bookworm-v20261014``.
        disk_gb: Smallest disk it fits on.
        driver: Kernel modules of NVIDIA's driver: ``open``, which need a Turing GPU or a newer one; empty: none.
    """

    project: str
    family: str
    name: str
    disk_gb: int
    driver: str = ""

    @property
    def path(self) -> str:
        """``projects/debian-cloud/global/images/…``."""
        return f"projects/{self.project}/global/images/{self.name}"


_L4_ZONES = (
    *("europe-west1-b", "europe-west1-c", "europe-west2-a", "europe-west2-b"),
    *("us-central1-a", "us-central1-b", "us-central1-c", "us-west4-a"),
)
_HYPERDISKS = ("hyperdisk-balanced",)
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
        MachineType(f"g2-standard-{cpus}", cpus, cpus * 4096, "nvidia-l4", gpus, _L4_ZONES)
        for cpus, gpus in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))
    ),
    *(
        MachineType(f"a2-highgpu-{gpus}g", 12 * gpus, 87040 * gpus, "nvidia-tesla-a100", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    *(
        MachineType(f"a3-highgpu-{gpus}g", 26 * gpus, 239616 * gpus, "nvidia-h100-80gb", gpus, _A100_ZONES, gpus < 8)
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a2-megagpu-16g", 96, 1392640, "nvidia-tesla-a100", 16, _A100_ZONES),
    *(
        MachineType(f"a2-ultragpu-{gpus}g", 12 * gpus, 174080 * gpus, "nvidia-a100-80gb", gpus, _A100_ZONES)
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a3-megagpu-8g", 208, 1916928, "nvidia-h100-mega-80gb", 8, _A100_ZONES),
    MachineType("a3-ultragpu-8g", 224, 3023872, "nvidia-h200-141gb", 8, _A100_ZONES, disks=_HYPERDISKS),
    MachineType("a4-highgpu-8g", 224, 4063232, "nvidia-b200", 8, ("us-central1-b", *AI_ZONES), disks=_HYPERDISKS),
    *(
        MachineType(
            f"g4-standard-{48 * gpus}",
            48 * gpus,
            184320 * gpus,
            "nvidia-rtx-pro-6000",
            gpus,
            _A100_ZONES,
            disks=_HYPERDISKS,
        )
        for gpus in (1, 2, 4, 8)
    ),
    MachineType("a9-newgpu-4g", 96, 786432, "nvidia-new-1tb", 4, _A100_ZONES),
    MachineType("ct6e-standard-1t", 44, 458752, "ct6e", 1, ("us-central1-b",), disks=("hyperdisk-balanced",)),
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

_DEEP_LEARNING = "deeplearning-platform-release"
IMAGES = (
    *(
        Image(_DEEP_LEARNING, f"{stem}-nvidia-580", f"{stem}-nvidia-580-v20261016", 50, "open")
        for stem in (
            *("common-cu129-ubuntu-2404", "common-cu129-ubuntu-2204"),
            *("pytorch-2-9-cu129-ubuntu-2404", "pytorch-2-9-cu129-ubuntu-2204"),
        )
    ),
    Image("debian-cloud", "debian-12", "debian-12-bookworm-v20261014", 10),
    Image("debian-cloud", "debian-13", "debian-13-trixie-v20261014", 10),
    Image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64-v20261012", 10),
    Image("ubuntu-os-cloud", "ubuntu-2204-lts", "ubuntu-2204-jammy-v20261012", 10),
)

_IMAGE_PATH = re.compile(r"projects/([^/]+)/(?:global|zones/[^/]+)/(images|images/family|imageFamilyViews)/([^/]+)")
DISK_TYPES = ("pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced")

REGION_QUOTAS = {
    "CPUS": 1024.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "A2_CPUS": 96.0,
    "N2_CPUS": 128.0,
    "DISKS_TOTAL_GB": 40960.0,
    "SSD_TOTAL_GB": 40960.0,
    "IN_USE_ADDRESSES": 256.0,
    "STATIC_ADDRESSES": 8.0,
    "INSTANCES": 6000.0,
    **{prefix + gpu.quota: 128.0 for gpu in ACCELERATORS.values() if gpu.quota for prefix in ("", "PREEMPTIBLE_")},
}
PROJECT_QUOTAS = {"CPUS_ALL_REGIONS": 2048.0, "GPUS_ALL_REGIONS": 256.0, "FIREWALLS": 100.0, "NETWORKS": 5.0}


def numeric_id(text: str) -> str:
    """Return a numeric id, the same for the same text."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 10**17)


def cpu_quota(machine: MachineType) -> str:
    """Return the quota that the machine's CPUs count against."""
    return {"a2": "A2_CPUS", "n2": "N2_CPUS"}.get(machine.family, "CPUS")


def find_image(source: str) -> Image | None:
    """Return the image for a path from ``projects/`` on: by name, by family, or by family as a zone sees it."""
    match = _IMAGE_PATH.fullmatch(source)
    if not match:
        return None
    project, where, name = match.groups()
    for image in IMAGES:
        if (image.project, image.name if where == "images" else image.family) == (project, name):
            return image
    return None


def zone_body(base: str, zone: str) -> Json:
    """Return a Zone; `base` is the URL of the project."""
    return {
        **_common("zone", zone),
        "status": "UP",
        "region": f"{base}/regions/{ZONES[zone]}",
        "selfLink": f"{base}/zones/{zone}",
        "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Skylake"],
        "supportsPzs": False,
    }


def region_body(base: str, region: str, quotas: list[Json]) -> Json:
    """Return a Region."""
    return {
        **_common("region", region),
        "status": "UP",
        "zones": [f"{base}/zones/{zone}" for zone in REGIONS[region]],
        "quotas": quotas,
        "selfLink": f"{base}/regions/{region}",
        "supportsPzs": False,
    }


def machine_type_body(base: str, zone: str, machine: MachineType) -> Json:
    """Return a MachineType."""
    body = {
        **_common("machineType", machine.name),
        "description": f"{machine.cpus} vCPUs, {machine.memory_mb / 1024:g} GB RAM",
        "guestCpus": machine.cpus,
        "memoryMb": machine.memory_mb,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": machine.name in ("e2-micro", "e2-small", "e2-medium"),
        "architecture": "X86_64",
        "zone": zone,
        "selfLink": f"{base}/zones/{zone}/machineTypes/{machine.name}",
    }
    if machine.gpu:
        body["accelerators"] = [{"guestAcceleratorType": machine.gpu, "guestAcceleratorCount": machine.gpus}]
    return body


def accelerator_body(base: str, zone: str, accelerator: Accelerator) -> Json:
    """Return an AcceleratorType."""
    return {
        **_common("acceleratorType", accelerator.name),
        "description": accelerator.title,
        "maximumCardsPerInstance": max(accelerator.counts, default=8),
        "zone": f"{base}/zones/{zone}",
        "selfLink": f"{base}/zones/{zone}/acceleratorTypes/{accelerator.name}",
    }


def disk_type_body(base: str, zone: str, name: str) -> Json:
    """Return a DiskType."""
    return {
        **_common("diskType", name),
        "validDiskSize": "10GB-65536GB",
        "defaultDiskSizeGb": "100",
        "zone": f"{base}/zones/{zone}",
        "selfLink": f"{base}/zones/{zone}/diskTypes/{name}",
    }


def image_body(root: str, image: Image) -> Json:
    """Return an Image; `root` is the URL of the API."""
    return {
        **_common("image", image.name),
        "family": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "architecture": "X86_64",
        "archiveSizeBytes": "1073741824",
        "diskSizeGb": str(image.disk_gb),
        "guestOsFeatures": [{"type": "UEFI_COMPATIBLE"}, {"type": "VIRTIO_SCSI_MULTIQUEUE"}],
        "labelFingerprint": "42WmSpB8rSM=",
        "selfLink": f"{root}/{image.path}",
    }


def network_body(base: str, name: str) -> Json:
    """Return a Network with one subnetwork in each region."""
    return {
        **_common("network", name),
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
        "subnetworks": [f"{base}/regions/{region}/subnetworks/{name}" for region in REGIONS],
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "selfLink": f"{base}/global/networks/{name}",
    }


def subnetwork_body(base: str, region: str, name: str) -> Json:
    """Return a Subnetwork."""
    third = 128 + 4 * list(REGIONS).index(region)
    return {
        **_common("subnetwork", name),
        "network": f"{base}/global/networks/{name}",
        "ipCidrRange": f"10.{third}.0.0/20",
        "gatewayAddress": f"10.{third}.0.1",
        "region": f"{base}/regions/{region}",
        "privateIpGoogleAccess": False,
        "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "fingerprint": "7ATVeZfHBPE=",
        "selfLink": f"{base}/regions/{region}/subnetworks/{name}",
    }


def _common(kind: str, name: str) -> Json:
    return {
        "kind": f"compute#{kind}",
        "id": numeric_id(f"{kind} {name}"),
        "name": name,
        "description": name,
        "creationTimestamp": CREATED,
    }
