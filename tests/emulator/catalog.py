"""Offers of the emulated Compute Engine, which the files in `data` list: places, machines, images, quotas, prices.

Source: https://cloud.google.com/compute/docs/machine-resource, and the page of each machine family there; numbers of
Local SSDs: https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CREATED = "2026-01-05T08:00:00.000-08:00"
COMPUTE_ENGINE = "6F81-5844-456A"
"""Number of Compute Engine in the price list."""
STANDARD, FLEX_START, RESERVATION_BOUND = "STANDARD", "FLEX_START", "RESERVATION_BOUND"
_LOGIN_SCRIPT = """\
echo "======================================"
echo "Welcome to the Google Deep Learning VM"
echo "======================================"
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nccl2/lib:/usr/local/cuda/extras/CUPTI/lib64
"""


def _read(name: str) -> Any:
    return json.loads((Path(__file__).with_name("data") / f"{name}.json").read_text(encoding="utf-8"))


_MACHINES = _read("machines")
REGIONS: dict[str, list[str]] = _MACHINES["regions"]
ZONES = {zone: region for region, zones in REGIONS.items() for zone in zones}
AI_ZONES: list[str] = _MACHINES["ai_zones"]
"""Zones with only the newest accelerators."""
DISK_TYPES: list[str] = _MACHINES["disk_types"]
QUOTAS: dict[str, dict[str, float]] = _read("quotas")
"""Quotas of regions, of a project, and those of a new project or of a free trial, as users report them."""
NEW_PROJECT_QUOTAS = QUOTAS["new_project"]


def numeric_id(text: str) -> str:
    """Return a numeric id, the same for the same text."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 10**17)


def entry(kind: str, name: str, **fields: Any) -> Json:
    """Return an entry of the catalog with the fields that all have."""
    shared = {"id": numeric_id(f"{kind} {name}"), "name": name, "description": name, "creationTimestamp": CREATED}
    return {"kind": f"compute#{kind}", **shared, **fields}


@dataclass(frozen=True)
class Series:
    """Properties that the machine types of a series share.

    Attributes:
        disks: Types of boot disks.
        models: Provisioning models.
        arm: Whether the processors are Arm processors.
        gvnic: Whether gVNIC is the only network interface.
        cpu_quota: Quota of its CPUs; empty: one that regions do not list.
        migrates: Maintenance can migrate instances; False: it stops them; None: those on demand must migrate.
    """

    disks: tuple[str, ...] = ("pd-standard", "pd-balanced", "pd-ssd")
    models: tuple[str, ...] = (STANDARD, "SPOT")
    arm: bool = False
    gvnic: bool = False
    cpu_quota: str = ""
    migrates: bool | None = True

    @property
    def maintenance(self) -> tuple[str, ...]:
        """Return the possible values of ``onHostMaintenance`` of instances on demand."""
        return {True: ("MIGRATE", "TERMINATE"), False: ("TERMINATE",), None: ("MIGRATE",)}[self.migrates]

    @property
    def architecture(self) -> str:
        """``X86_64`` or ``ARM64``."""
        return "ARM64" if self.arm else "X86_64"


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
        """Return its series, by the longest prefix of its name."""
        words = self.name.split("-")
        names = ("-".join(words[:count]) for count in range(len(words), 0, -1))
        return next(_SERIES[name] for name in names if name in _SERIES)

    @property
    def compact(self) -> bool:
        """Return whether compact placement policies support it."""
        return self.family in _MACHINES["compact"]

    @property
    def local_ssds(self) -> int:
        """Return the number of Local SSDs that it comes with, of 375 GB each."""
        each: int = _MACHINES["included_local_ssds"].get(self.name.rpartition("-")[0], 0)
        return each * self.gpus

    @property
    def local_ssd_counts(self) -> tuple[int, ...]:
        """Return the numbers of Local SSDs that a request may attach, which depend on the vCPUs."""
        table = _MACHINES["local_ssds"]
        sizes = table.get(self.name.rpartition("-")[0]) or table.get(self.family, ())
        return (0, *next((counts for most, counts in sizes if self.cpus <= most), ()))

    def is_in(self, zone: str) -> bool:
        """Return whether it is available in `zone`."""
        return zone in self.zones if self.zones else zone not in AI_ZONES

    def body(self, base: str, zone: str) -> Json:
        """Return it as the API shows it in a zone; `base` is the URL of the project."""
        gpus = {"guestAcceleratorType": self.gpu, "guestAcceleratorCount": self.gpus}
        return entry(
            "machineType",
            self.name,
            guestCpus=self.cpus,
            memoryMb=self.memory_mb,
            isSharedCpu=self.name in ("e2-micro", "e2-small", "e2-medium"),
            architecture=self.series.architecture,
            zone=zone,
            selfLink=f"{base}/zones/{zone}/machineTypes/{self.name}",
            **({"accelerators": [gpus]} if self.gpu else {}),
        )


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
        smi: Name and memory as nvidia-smi prints them, power limit in watts, compute capability.
    """

    name: str
    title: str
    counts: tuple[int, ...]
    max_cpus: int
    quota: str
    zones: tuple[str, ...]
    smi: tuple[str, ...] = ()

    def body(self, base: str, zone: str) -> Json:
        """Return it as the API shows it in a zone; `base` is the URL of the project."""
        most = max(self.counts, default=8)
        link = {"zone": f"{base}/zones/{zone}", "selfLink": f"{base}/zones/{zone}/acceleratorTypes/{self.name}"}
        return entry("acceleratorType", self.name, maximumCardsPerInstance=most, **link)


def _tuples(row: Json) -> Json:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


_SERIES = {name: Series(**_tuples(row)) for name, row in _MACHINES["series"].items()}
MACHINE_TYPES = {row[0]: MachineType(*row[:5], *map(tuple, row[5:])) for row in _MACHINES["machine_types"]}
ACCELERATORS = {name: Accelerator(name, **_tuples(row)) for name, row in _MACHINES["accelerators"].items()}


@dataclass(frozen=True)
class Image:
    """A boot image.

    Attributes:
        project: The project that owns it.
        family: ``debian-12``.
        name: ``debian-12-bookworm-v20261014``.
        disk_gb: Smallest disk it fits on.
        driver: Kernel modules of NVIDIA's driver: ``open``, which need a Turing GPU or a newer one, or
            ``proprietary``; empty: none.
        arm: It is for Arm processors.
        gvnic: It has a driver for gVNIC.
        cloud_init: It has cloud-init, which replaces host keys at the first boot, and prints them on the console.
        python: Version of its Python, which has neither pip, conda, nor headers.
        number: Its id; empty: derived from its path.
        files: Directory of the files on it, as a guest saved them; None: only those that all guests have.
    """

    project: str
    family: str
    name: str
    disk_gb: int
    driver: str = ""
    arm: bool = False
    gvnic: bool = True
    cloud_init: bool = True
    python: str = "3.12"
    number: str = ""
    files: Path | None = None

    @property
    def is_managed(self) -> bool:
        """Return whether its Python is marked as managed by apt: Debian 12 and Ubuntu 23.04 began with it."""
        return tuple(map(int, self.python.split("."))) >= (3, 11)

    @property
    def login_script(self) -> str:
        """Return its file in /etc/profile.d, with what login shells print and set; empty: it has none."""
        return _LOGIN_SCRIPT if self.project == "deeplearning-platform-release" else ""

    @property
    def path(self) -> str:
        """``projects/debian-cloud/global/images/…``."""
        return f"projects/{self.project}/global/images/{self.name}"

    @property
    def architecture(self) -> str:
        """``X86_64`` or ``ARM64``."""
        return "ARM64" if self.arm else "X86_64"

    @property
    def id(self) -> str:
        """Return its numeric id."""
        return self.number or numeric_id(self.path)

    def body(self, root: str) -> Json:
        """Return it as the API shows it; `root` is the URL of the API."""
        features = ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", *(("GVNIC",) if self.gvnic else ()))
        return entry(
            "image",
            self.name,
            family=self.family,
            status="READY",
            sourceType="RAW",
            architecture=self.architecture,
            archiveSizeBytes="1073741824",
            diskSizeGb=str(self.disk_gb),
            guestOsFeatures=[{"type": feature} for feature in features],
            selfLink=f"{root}/{self.path}",
        )


IMAGES = tuple(Image(**row) for row in _read("images"))
_IMAGE_PATH = re.compile(r"projects/([^/]+)/(?:global|zones/[^/]+)/(images|images/family|imageFamilyViews)/([^/]+)")


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


@cache
def compute_skus() -> tuple[Json, ...]:
    """Return the SKUs of Compute Engine, with descriptions as ambiguous as the real ones, ordered by their IDs."""
    return tuple(sorted((_sku(*row) for row in _read("skus")), key=lambda sku: str(sku["skuId"])))


def _sku(
    description: str, region: str, unit: str, usd: float, group: str, usage: str, family: str, free: float
) -> Json:
    """Return a Sku; `free` units are in a tier that costs nothing."""
    digits = hashlib.sha256(f"{description} {region} {unit} {usage}".encode()).hexdigest()[:12].upper()
    sku_id = "-".join(digits[start : start + 4] for start in (0, 4, 8))
    tiers = [{"startUsageAmount": 0.0, "unitPrice": _money(0.0)}] if free else []
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1.0,
        "tieredRates": [*tiers, {"startUsageAmount": free, "unitPrice": _money(usd)}],
        "baseUnit": "s" if unit == "h" else "By.s",
        "baseUnitConversionFactor": 3600.0,
    }
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": expression, "effectiveTime": "2026-11-20T14:32:27.138Z"}],
        "serviceProviderName": "Google",
    }


def _money(usd: float) -> Json:
    nanos = round(usd * 1e9)
    return {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
