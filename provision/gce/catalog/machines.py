"""Machine types of Compute Engine and their GPUs; completes and checks the options of a user.

Sources: https://cloud.google.com/compute/docs/gpus, https://cloud.google.com/compute/docs/machine-resource and the
page of each machine family there, https://cloud.google.com/compute/docs/instances/provisioning-models,
https://cloud.google.com/compute/docs/instances/about-flex-start-vms,
https://cloud.google.com/ai-hypercomputer/docs/consumption-models, and
https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds. A GPU type that is not listed here can
still be rented if a machine type comes with it.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from google.cloud import compute_v1

from provision.durations import format_duration
from provision.gce.catalog.gpus import GPUS, Gpu, find_gpu, listed
from provision.gce.catalog.names import is_region, is_zone, network_of, subnetwork_of
from provision.gce.options import (
    IDLE_TIMEOUT_MIN_S,
    LOCAL_SSD,
    MAX_DURATION_MAX_S,
    GceOptions,
    check_bucket,
    with_storage_scope,
)
from provision.options import InvalidOptionError
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted

STANDARD, SPOT, FLEX_START = "STANDARD", "SPOT", "FLEX_START"
RESERVATION_BOUND = "RESERVATION_BOUND"

PD_BALANCED, PD_SSD, PD_STANDARD, HYPERDISK = "pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"
_PERSISTENT = (PD_BALANCED, PD_SSD, PD_STANDARD)
_SOLID_STATE = (PD_BALANCED, PD_SSD)
_BOTH = (*_SOLID_STATE, HYPERDISK)
_ON_DEMAND = frozenset({STANDARD, SPOT})
_ON_REQUEST = frozenset({SPOT, FLEX_START})
_DENSE = _ON_REQUEST | {RESERVATION_BOUND}
_ALL = _ON_DEMAND | _ON_REQUEST

LocalSsds = tuple[tuple[int, tuple[int, ...]], ...]
"""Numbers of Local SSDs that an instance can have, each with the smallest number of vCPUs for which they apply."""

_UP_TO_8, _UP_TO_24 = (1, 2, 4, 8), (1, 2, 4, 8, 16, 24)
_N1_SSDS: LocalSsds = ((1, (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)),)
_N2_SSDS: LocalSsds = (
    (2, _UP_TO_24),
    (12, _UP_TO_24[1:]),
    (22, _UP_TO_24[2:]),
    (42, _UP_TO_24[3:]),
    (82, _UP_TO_24[4:]),
)
_N2D_SSDS: LocalSsds = ((2, _UP_TO_24), (32, _UP_TO_24[1:]), (64, _UP_TO_24[2:]), (96, _UP_TO_24[3:]))
_C2_SSDS: LocalSsds = ((4, _UP_TO_8), (16, _UP_TO_8[1:]), (30, _UP_TO_8[2:]), (60, _UP_TO_8[3:]))
_C2D_SSDS: LocalSsds = ((2, _UP_TO_8), (32, _UP_TO_8[1:]), (56, _UP_TO_8[2:]), (112, _UP_TO_8[3:]))
_A2_SSDS: LocalSsds = ((12, _UP_TO_8), (24, _UP_TO_8[1:]), (48, _UP_TO_8[2:]), (96, _UP_TO_8[3:]))
_G2_SSDS: LocalSsds = ((4, (1,)), (24, (2,)), (32, (1,)), (48, (4,)), (96, (8,)))


@dataclass(frozen=True)
class Series:
    """Properties that the machine types of a series share.

    Attributes:
        disks: Types of boot disks that are supported, the default first.
        gvnic: Instances have network interfaces of the type gVNIC only.
        arm: The processors are of the Arm architecture.
        compact: Compact placement is supported.
        models: Provisioning models that are sold; Flex-start VMs of N1 only with GPUs.
        local_ssds: Local SSDs that can be attached; empty: none, except those that machine types come with.
    """

    disks: tuple[str, ...] = _PERSISTENT
    gvnic: bool = False
    arm: bool = False
    compact: bool = False
    models: frozenset[str] = _ON_DEMAND
    local_ssds: LocalSsds = ()

    def local_ssd_counts(self, cpus: int) -> tuple[int, ...]:
        """Return the numbers of Local SSDs that can be attached to an instance with this number of vCPUs."""
        return next((counts for least, counts in reversed(self.local_ssds) if cpus >= least), ())


_EARLY = Series()
_THIRD = Series(_BOTH, gvnic=True)
_LATEST = Series((HYPERDISK,), gvnic=True)
_LATEST_ARM = Series((HYPERDISK,), gvnic=True, arm=True)

UNKNOWN = Series((HYPERDISK,), models=_ALL)
"""A series that is not in the table, because it is newer: since 2024, new series support only Hyperdisk."""

_TABLE: Mapping[str, Series] = MappingProxyType(
    {
        **dict.fromkeys(("e2", "f1", "g1", "t2d", "m1", "m2"), _EARLY),
        "custom": Series(local_ssds=_N1_SSDS),
        "n1": Series(models=_ALL, local_ssds=_N1_SSDS),
        "n2": Series(local_ssds=_N2_SSDS),
        "n2d": Series(local_ssds=_N2D_SSDS),
        "c2": Series(local_ssds=_C2_SSDS),
        "c2d": Series(local_ssds=_C2D_SSDS),
        "a2": Series(models=_ALL, local_ssds=_A2_SSDS),
        "a2-ultragpu": Series(models=_ALL),
        "t2a": Series(gvnic=True, arm=True),
        **dict.fromkeys(("c3", "c3d", "h3", "m3", "z3"), _THIRD),
        **dict.fromkeys(("c4", "c4d", "m4", "n4", "n4d", "x4"), _LATEST),
        **dict.fromkeys(("c4a", "n4a"), _LATEST_ARM),
        **dict.fromkeys(("h4d", "g4"), Series((HYPERDISK,), gvnic=True, models=_ALL)),
        "g2": Series(_SOLID_STATE, models=_ALL, local_ssds=_G2_SSDS),
        "a3": Series(_BOTH, gvnic=True, models=_ALL),
        **dict.fromkeys(
            ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"), Series(_BOTH, gvnic=True, models=_ON_REQUEST)
        ),
        "a3-ultragpu": Series((HYPERDISK,), gvnic=True, models=_DENSE),
        "a4": Series((HYPERDISK,), gvnic=True, models=_DENSE),
        "a4x": Series((HYPERDISK,), gvnic=True, arm=True, models=frozenset()),
    }
)


_COMPACT = frozenset(
    {
        *("a2", "a2-ultragpu", "a3", "a3-ultragpu", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d"),
        *("g2", "h3", "h4d", "n2", "n2d", "z3"),
        *(f"a3-highgpu-{gpus}g" for gpus in (1, 2, 4)),
    }
)
"""Source: https://cloud.google.com/compute/docs/instances/placement-policies-overview."""


_FIXED = re.compile(r"h[0-9]+d?-|z3-highmem-(?:88(?!-standard)|1[0-9][0-9])|.*-metal\Z", re.ASCII)
"""Machine types for high-performance computing, with more than 18 TiB of Titanium SSD, and bare metal."""


def can_migrate(machine_type: str) -> bool:
    """Return whether maintenance can migrate instances without GPUs; otherwise it stops them.

    Source: https://cloud.google.com/compute/docs/instances/host-maintenance-overview#host_events.
    """
    return series_of(machine_type) is not UNKNOWN and not _FIXED.match(machine_type)


def series_of(machine_type: str) -> Series:
    """Return the series of a machine type, by the longest prefix of its name; UNKNOWN if it is not in the table."""
    words = machine_type.split("-")
    prefixes = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    name = next((prefix for prefix in prefixes if prefix in _TABLE), "")
    if not name:
        return UNKNOWN
    series = replace(_TABLE[name], compact=name in _COMPACT)
    # Bare metal instances have network interfaces of another type.
    return replace(series, gvnic=False) if series.gvnic and words[-1] == "metal" else series


GPU_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
CPU_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
ARM_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64"
"""Default boot images: with NVIDIA's driver 580, without GPUs, and for Arm processors."""

DEFAULT_MACHINE_TYPE = "n1-standard-4"

MAX_DURATION_MIN_S = 30
"""Smallest maxRunDuration that Compute Engine accepts."""

FLEX_DURATION_MIN_S, FLEX_DURATION_MAX_S = 600, 7 * 24 * 3600
"""Smallest and largest maxRunDuration of Flex-start VMs."""

FLEX_WAIT_MIN_S, FLEX_WAIT_MAX_S = 90, 7200
"""Smallest and largest requestValidForDuration of Flex-start VMs."""

_MACHINE_TYPE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", re.ASCII)
_CUSTOM = re.compile(r"(?:[a-z][a-z0-9]*-)?custom(?:-[a-z]+)?-([1-9][0-9]*)-([1-9][0-9]*)(?:-ext)?", re.ASCII)
_RESERVATION = re.compile(r"(?:projects/[a-z][a-z0-9.:-]*/reservations/)?[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SIZE = re.compile(r"-([1-9][0-9]*)(?:-[a-z]+)*\Z", re.ASCII)
_TPU = re.compile(r"ct[0-9]|tpu[0-9]", re.ASCII)
_LIST_IMAGES = ("gcloud", "compute", "images", "list", "--project", "deeplearning-platform-release")
_OPEN_DRIVER = re.compile(r"projects/deeplearning-platform-release/.*-nvidia-(?:5[7-9]|[6-9][0-9])[0-9]\b", re.ASCII)
"""Images with NVIDIA's open kernel modules: those of Google with driver 570 or a later one."""
COMPACT, ANY = "compact", "any"
"""Placements of the instances of a fleet."""
_FAST_NETWORK = re.compile(r"a3-(?!highgpu-[124]g)|a4-", re.ASCII)
"""Machine types whose GPUs communicate with those of other instances directly."""
_ACCELERATED = re.compile(r"[ag][0-9]+x?-", re.ASCII)
"""Families of machine types that come with GPUs, including future ones."""
_GPU_FAMILIES = frozenset({"a2", "a3", "a4", "a4x", "g2", "g4"})
_SHARED_CORE = MappingProxyType({"f1-micro": 1, "g1-small": 1, "e2-micro": 2, "e2-small": 2, "e2-medium": 2})
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z0-9][a-z0-9-]*", re.ASCII)
"""ID of a project, or its number: https://cloud.google.com/resource-manager/docs/creating-managing-projects."""
_IMAGE = re.compile(
    r"(?:https://[a-z.]+/compute/[a-z0-9]+/)?projects/[^/]+/global/images/(?:family/)?[^/]+", re.ASCII
)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._:/-]")


_G2_GPUS = MappingProxyType({4: 1, 8: 1, 12: 1, 16: 1, 32: 1, 24: 2, 48: 4, 96: 8})
"""L4s by the vCPUs of a g2-standard machine type."""


def gpu_of(cloud: GceOptions) -> Gpu | None:
    """Return the type of the GPUs of `cloud`; None if it has none, or a type that is not listed here."""
    return next((gpu for gpu in GPUS.values() if cloud.gpu in {gpu.short, gpu.accelerator}), None)


def resolved(cloud: GceOptions) -> GceOptions:
    """Return `cloud` with the full name of its GPUs, and with default machine type, disk type, and image.

    Options that are resolved already are returned unchanged.

    Raises:
        ValueError: a value is invalid, or values contradict each other; the text is for the user.
    """
    _check_words(cloud)
    _check_numbers(cloud)
    check_bucket(cloud)
    cloud = replace(cloud, ssh_from=tuple(_network(text) for text in cloud.ssh_from))
    if cloud.machine_type and not _MACHINE_TYPE.fullmatch(cloud.machine_type):
        message = f"invalid machine type {cloud.machine_type!r}; expected e.g. {DEFAULT_MACHINE_TYPE}"
        raise InvalidOptionError(message, {"--machine-type": None}, [("gcloud", "compute", "machine-types", "list")])
    cloud = _with_gpus(cloud)
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    cloud = with_storage_scope(replace(cloud, machine_type=machine_type))
    if cloud.placement not in ("", COMPACT, ANY):
        message = f"invalid placement {cloud.placement!r}; choose from {COMPACT}, {ANY}"
        raise InvalidOptionError(message, {"--placement": None})
    close = _FAST_NETWORK.match(machine_type) and not cloud.flex_start and not cloud.reservation
    cloud = replace(cloud, placement=cloud.placement or (COMPACT if close else ANY))
    disk_type = cloud.disk_type or default_disk_type(machine_type)
    return replace(cloud, disk_type=disk_type, image=cloud.image or _default_image(cloud))


def _default_image(cloud: GceOptions) -> str:
    if has_gpus(cloud):
        return GPU_IMAGE
    return ARM_IMAGE if series_of(cloud.machine_type).arm else CPU_IMAGE


def refusal(cloud: GceOptions) -> ProviderError | None:
    """Return the error that instances with the resolved options `cloud` are not sold or cannot work; None if none."""
    series = series_of(cloud.machine_type)
    if _TPU.match(cloud.machine_type):
        message = f"{cloud.machine_type} has TPUs, which are not supported"
        hint = "select a machine type with GPUs, --gpu, or without accelerators"
        return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--machine-type": None})
    return (
        _driver_refusal(cloud)
        or _arm_refusal(cloud, arm=series.arm)
        or _model_refusal(cloud, series)
        or _disk_refusal(cloud, series)
        or _local_ssd_refusal(cloud, series)
        or _placement_refusal(cloud, series)
    )


def _driver_refusal(cloud: GceOptions) -> ProviderError | None:
    """Return the error that the image has no driver for the GPUs; None if it may have one."""
    gpu = gpu_of(cloud)
    if gpu is None or gpu.has_open_driver or not _OPEN_DRIVER.search(cloud.image):
        return None
    image = "the default image" if cloud.image == GPU_IMAGE else f"the image {cloud.image.rpartition('/')[2]!r}"
    return ProviderError(
        ErrorKind.USAGE,
        f"{image} does not support the {gpu.short.upper()}: it has NVIDIA's open kernel modules, "
        "which need a Turing GPU (T4) or a newer one",
        hint=f"select a newer GPU, or an image with the proprietary driver for the {gpu.short.upper()}: "
        "--image projects/PROJECT/global/images/IMAGE",
        next_steps=[(*_LIST_IMAGES, "--no-standard-images", "--show-deprecated")],
        again={"--gpu": "t4"},
    )


def _arm_refusal(cloud: GceOptions, *, arm: bool) -> ProviderError | None:
    """Return the error that the machine type has GPUs with Arm processors; None if it does not."""
    if not arm or not has_gpus(cloud):
        return None
    return ProviderError(
        ErrorKind.USAGE,
        f"{cloud.machine_type} has Arm processors, for which TensorFlow is not available with GPU support",
        hint="select GPUs of a machine type with x86 processors",
        again={"--machine-type": None, "--gpu": "b200:8", "--spot": True},
    )


def provisioning_model(cloud: GceOptions) -> str:
    """Return the provisioning model of instances, as Compute Engine names it."""
    if cloud.spot:
        return SPOT
    if cloud.reservation and RESERVATION_BOUND in series_of(cloud.machine_type).models:
        return RESERVATION_BOUND
    return FLEX_START if cloud.flex_start else STANDARD


def _model_refusal(cloud: GceOptions, series: Series) -> ProviderError | None:
    """Return the error that the machine type is not sold with the requested provisioning model; None if it is."""
    lacks_gpus = _family(cloud.machine_type) == "n1" and not cloud.gpus
    if cloud.flex_start and (FLEX_START not in series.models or lacks_gpus):
        message = f"{describe(cloud)} is not available as a Flex-start VM"
        hint = "select a machine type with GPUs, or an H4D machine type; or remove --flex-start"
        return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--flex-start": None, "--wait": None})
    if provisioning_model(cloud) in series.models:
        return None
    whole = ", or all 8 GPUs of a machine: --gpu h100:8" if cloud.machine_type.startswith("a3-highgpu-") else ""
    message = f"{cloud.machine_type} is not available on demand"
    hint = f"use Spot VMs, or Flex-start VMs (--flex-start){whole}"
    return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--spot": True})


def _disk_refusal(cloud: GceOptions, series: Series) -> ProviderError | None:
    """Return the error that the machine type does not support the Persistent Disk; other types are not checked."""
    if not cloud.disk_type.startswith("pd-") or cloud.disk_type in series.disks:
        return None
    return ProviderError(
        ErrorKind.USAGE,
        f"{cloud.machine_type} cannot boot from a disk of type {cloud.disk_type!r}: "
        f"it supports {listed(series.disks)}",
        hint="remove disk-type from fleet.toml, or select a supported type",
        again={"--disk-type": series.disks[0]},
    )


def _local_ssd_refusal(cloud: GceOptions, series: Series) -> ProviderError | None:
    """Return the error that the machine type cannot have this number of Local SSDs; None if it can."""
    counts = series.local_ssd_counts(cpus(cloud.machine_type) or 0)
    if not cloud.local_ssds or cloud.local_ssds in counts or series is UNKNOWN:
        return None
    if counts:
        larger = next((count for count in counts if count > cloud.local_ssds), counts[-1])
        return ProviderError(
            ErrorKind.USAGE,
            f"{cloud.machine_type} cannot have {counted(cloud.local_ssds, 'Local SSD')}: "
            f"it can have {listed(counts)}",
            hint="select one of these numbers",
            again={"--local-ssd": str(larger)},
        )
    problem = (
        "has its own, which this option does not change" if cloud.includes_local_ssds else "does not support them"
    )
    message = f"Local SSDs cannot be added to {cloud.machine_type}: it {problem}"
    hint = "remove --local-ssd, or select a machine type of N1, N2, N2D, C2, C2D, G2, or A2"
    return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--local-ssd": None})


def _placement_refusal(cloud: GceOptions, series: Series) -> ProviderError | None:
    """Return the error that the machine type does not support compact placement; None if it may."""
    if cloud.placement != COMPACT or series.compact or series is UNKNOWN:
        return None
    message = f"{cloud.machine_type} does not support compact placement"
    hint = "select a machine type of another series, such as N2, C2, G2, or A2, or leave --placement out"
    return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--placement": None})


def image_refusal(cloud: GceOptions, image: compute_v1.Image) -> ProviderError | None:
    """Return the error that the machine type cannot boot an image; None if it can, or the series is unknown.

    Args:
        cloud: Options, resolved.
        image: The image.
    """
    series = series_of(cloud.machine_type)
    if series is UNKNOWN:
        return None
    name, architecture = cloud.image.rpartition("/")[2], "ARM64" if series.arm else "X86_64"
    if image.architecture not in ("", architecture, "ARCHITECTURE_UNSPECIFIED"):
        problem = f"it is for {image.architecture} processors, and {cloud.machine_type} has {architecture}"
    elif series.gvnic and "GVNIC" not in {feature.type_ for feature in image.guest_os_features}:
        problem = f"it has no driver for gVNIC, the only network interface of {cloud.machine_type}"
    else:
        return None
    message = f"the image {name!r} does not start on {cloud.machine_type}: {problem}"
    hint = "select another image or machine type; without --image, the default image is suitable"
    return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--image": None})


def is_incomplete(cloud: GceOptions) -> bool:
    """Return whether only Compute Engine knows the GPUs or the processors of the machine type of `cloud`."""
    unknown = series_of(cloud.machine_type) is UNKNOWN
    return unknown or (not cloud.gpus and _ACCELERATED.match(cloud.machine_type) is not None)


def completed(cloud: GceOptions, machine_type: compute_v1.MachineType) -> GceOptions:
    """Return `cloud` with the GPUs of its machine type, and an image for its processors.

    Args:
        cloud: Options, resolved.
        machine_type: The machine type.

    Raises:
        ProviderError: it has GPUs with Arm processors.
    """
    arm = machine_type.architecture == "ARM64"
    accelerators = machine_type.accelerators
    if accelerators:
        first = accelerators[0]
        cloud = replace(cloud, gpu=first.guest_accelerator_type, gpus=first.guest_accelerator_count)
    if (refused := _arm_refusal(cloud, arm=arm)) is not None:
        raise refused
    if cloud.image == CPU_IMAGE and (accelerators or arm):
        cloud = replace(cloud, image=GPU_IMAGE if accelerators else ARM_IMAGE)
    return cloud


def has_gpus(cloud: GceOptions) -> bool:
    """Return whether the instances have GPUs, by their options or by their machine type, listed here or not."""
    return cloud.gpus > 0 or _family(cloud.machine_type) in _GPU_FAMILIES


def cpus(machine_type: str) -> int | None:
    """Return the number of vCPUs of a machine type from its name; None if the name does not contain it.

    The name of a custom type has the vCPUs first (``n2-custom-4-8192``); the name of a type with built-in GPUs may
    have the number of GPUs instead (``a2-highgpu-1g``).
    """
    if machine_type in _SHARED_CORE:
        return _SHARED_CORE[machine_type]
    custom = _CUSTOM.fullmatch(machine_type)
    if custom is not None:
        return int(custom[1])
    gpus = _accelerator_size(machine_type)
    if gpus is not None:
        return gpus
    size = _SIZE.search(machine_type)
    return int(size[1]) if size is not None else None


def default_disk_type(machine_type: str) -> str:
    """Return the type of the boot disk of a machine type, if none is given."""
    return series_of(machine_type).disks[0]


def describe(cloud: GceOptions) -> str:
    """Return machine type, GPUs, and Local SSDs by their names, ``n1-standard-4 + 1 nvidia-tesla-t4``."""
    parts = [cloud.machine_type or DEFAULT_MACHINE_TYPE]
    if cloud.gpus:
        parts.append(f"{cloud.gpus} {cloud.gpu}")
    if cloud.local_ssds:
        parts.append(f"{cloud.local_ssds} {LOCAL_SSD}")
    return " + ".join(parts)


def _with_gpus(cloud: GceOptions) -> GceOptions:
    """Return `cloud` with the full name of its GPUs, and with a machine type that supports them."""
    if not cloud.gpu:
        if cloud.gpus:
            raise ValueError(f"the type of the {cloud.gpus} GPUs is missing; choose from {', '.join(GPUS)}")
        return _with_built_in(cloud)
    if cloud.gpus and cloud.machine_type and gpu_of(cloud) is None and _ACCELERATED.match(cloud.machine_type):
        return cloud  # as Compute Engine reported
    gpu, count = find_gpu(f"{cloud.gpu}:{cloud.gpus}" if cloud.gpus else cloud.gpu)
    brought = _brought(cloud.machine_type)
    if not cloud.gpus and brought is not None and brought[0] is gpu:
        count = brought[1]
    cloud = replace(
        cloud, gpu=gpu.accelerator, gpus=count, machine_type=cloud.machine_type or gpu.machine_types[count]
    )
    if gpu.built_in:
        _check_built_in(cloud, gpu, brought)
    else:
        _check_attached(cloud, gpu)
    return cloud


def _with_built_in(cloud: GceOptions) -> GceOptions:
    """Return `cloud` with the GPUs that its machine type comes with."""
    brought = _brought(cloud.machine_type)
    if brought is None:
        return cloud
    return replace(cloud, gpu=brought[0].accelerator, gpus=brought[1])


def _brought(machine_type: str) -> tuple[Gpu, int] | None:
    """Return type and number of the GPUs that come with `machine_type`; None if it is not listed here."""
    if machine_type.startswith("g2-standard-"):
        count = _G2_GPUS.get(cpus(machine_type) or 0)
        return (GPUS["l4"], count) if count else None
    for gpu in GPUS.values():
        for count, name in gpu.machine_types.items():
            if gpu.built_in and name == machine_type:
                return gpu, count
    return None


def _check_built_in(cloud: GceOptions, gpu: Gpu, brought: tuple[Gpu, int] | None) -> None:
    if not cloud.machine_type or cloud.machine_type == gpu.machine_types[cloud.gpus]:
        return
    if brought is None or brought[0] is not gpu:
        raise InvalidOptionError(
            f"{gpu.accelerator} is available only with the machine types {listed(gpu.machine_types.values())}; "
            f"not with {cloud.machine_type}",
            {"--machine-type": None},
        )
    if brought[1] != cloud.gpus:
        raise InvalidOptionError(
            f"{cloud.machine_type} comes with {brought[1]} {gpu.accelerator}, not {cloud.gpus}; "
            f"{gpu.machine_types[cloud.gpus]} has {cloud.gpus}",
            {"--machine-type": gpu.machine_types[cloud.gpus]},
        )


def _check_attached(cloud: GceOptions, gpu: Gpu) -> None:
    family = _family(cloud.machine_type)
    if family not in {"n1", "custom"}:
        raise InvalidOptionError(
            f"{gpu.accelerator} can be attached to N1 machine types only, such as {gpu.machine_types[cloud.gpus]}; "
            f"{cloud.machine_type} is not an N1 machine type",
            {"--machine-type": None},
        )
    count = cpus(cloud.machine_type)
    most = gpu.cpus[cloud.gpus]
    if count is not None and count > most:
        raise InvalidOptionError(
            f"with {cloud.gpus} {gpu.accelerator}, an instance has at most {most} vCPUs; "
            f"{cloud.machine_type} has {count}",
            {"--machine-type": None},
        )


def _check_words(cloud: GceOptions) -> None:
    """Check names that are sent as parts of URLs and requests."""
    for zone in cloud.zones:
        if not is_zone(zone) and not is_region(zone):
            lower = zone.lower()
            raise InvalidOptionError(
                f"{zone!r} is neither a zone nor a region; "
                "zones are called like us-central1-a, regions like us-central1",
                {"--zone": lower if is_zone(lower) or is_region(lower) else None},
                [("gcloud", "compute", "zones", "list")],
            )
    for noun, text in (
        ("image", cloud.image),
        ("disk type", cloud.disk_type),
        ("network", cloud.network),
        ("subnetwork", cloud.subnetwork),
    ):
        if _NOT_A_NAME.search(text):
            raise ValueError(f"invalid {noun} {text!r}")
    if cloud.project and not _PROJECT.fullmatch(cloud.project):
        message = f"invalid project {cloud.project!r}; give its ID, which is not its name"
        raise InvalidOptionError(message, next_steps=[("gcloud", "projects", "list")])
    _check_network(cloud)
    if cloud.reservation and not _RESERVATION.fullmatch(cloud.reservation):
        raise ValueError(
            f"invalid reservation {cloud.reservation!r}; expected its name, or projects/PROJECT/reservations/NAME"
        )
    if cloud.reservation and (cloud.spot or cloud.flex_start):
        message = "--reservation excludes --spot and --flex-start"
        raise InvalidOptionError(message, {"--spot": None, "--flex-start": None, "--wait": None})
    if cloud.image and "/" not in cloud.image:
        raise InvalidOptionError(
            f"the project of image {cloud.image!r} is missing; "
            f"write projects/PROJECT/global/images/family/{cloud.image}",
            next_steps=[("gcloud", "compute", "images", "list", f"--filter=name:{cloud.image}")],
        )
    if cloud.image and not _IMAGE.fullmatch(cloud.image):
        raise InvalidOptionError(
            f"invalid image {cloud.image!r}; "
            "write projects/PROJECT/global/images/family/FAMILY, or projects/PROJECT/global/images/IMAGE",
            next_steps=[("gcloud", "compute", "images", "list")],
        )


def _check_network(cloud: GceOptions) -> None:
    network, subnetwork = network_of(cloud.network), subnetwork_of(cloud.subnetwork)
    if subnetwork.project and subnetwork.project != (network.project or cloud.project or subnetwork.project):
        raise ValueError(
            f"subnetwork {cloud.subnetwork!r} is not in network {cloud.network!r}: "
            f"select its network, --network projects/{subnetwork.project}/global/networks/NAME"
        )


def _check_numbers(cloud: GceOptions) -> None:
    """Raise ValueError for amounts and times that Compute Engine does not accept.

    Source: https://cloud.google.com/compute/docs/instances/about-flex-start-vms.
    """
    lifetime_s, idle_s, wait_s, is_flex = cloud.max_duration_s, cloud.idle_timeout_s, cloud.wait_s, cloud.flex_start
    nearest_wait_s = min(max(wait_s, FLEX_WAIT_MIN_S), FLEX_WAIT_MAX_S)
    # fmt: off
    rows: Sequence[tuple[object, str, Mapping[str, str | bool | None] | None]] = (
        (lifetime_s and not MAX_DURATION_MIN_S <= lifetime_s <= MAX_DURATION_MAX_S, "the lifetime of an instance is "
            f"{MAX_DURATION_MIN_S} seconds to 120 days, not {format_duration(lifetime_s)}", {"--max-duration": None}),
        (idle_s and idle_s < IDLE_TIMEOUT_MIN_S,
            f"--idle-timeout is at least 5 minutes, not {format_duration(idle_s)}; 0 disables it",
            {"--idle-timeout": format_duration(IDLE_TIMEOUT_MIN_S)}),
        (idle_s and is_flex, "--idle-timeout excludes --flex-start: such instances are deleted, and do not power off",
            {"--idle-timeout": None}),
        (not 0 <= cloud.max_cost_usd < math.inf,
            "the limit of the cost is an amount in US dollars, such as 5 or 7.50; 0 disables it", None),
        (not 0 <= cloud.max_price_usd_h < math.inf,
            "the limit of the price is an amount in US dollars an hour, such as 0.50; 0 disables it", None),
        (wait_s and not is_flex,
            "--wait requires --flex-start: Compute Engine queues only requests for Flex-start VMs", {"--wait": None}),
        (is_flex and cloud.spot, "--spot and --flex-start exclude each other",
            {"--flex-start": None, "--wait": None}),
        (wait_s and wait_s != nearest_wait_s, f"Compute Engine queues requests for {FLEX_WAIT_MIN_S} s to 2 h, "
            f"not for {format_duration(wait_s)} (--wait); 0 disables the queue",
            {"--wait": format_duration(nearest_wait_s)}),
        (is_flex and not FLEX_DURATION_MIN_S <= lifetime_s <= FLEX_DURATION_MAX_S,
            "Flex-start VMs run for 10 minutes to 7 days; set --max-duration", {"--max-duration": "8h"}),
        (not 10 <= cloud.disk_gb <= 65536, f"a boot disk has 10 to 65536 GB, not {cloud.disk_gb}",
            {"--disk-size": str(min(max(cloud.disk_gb, 10), 65536))}),
        (cloud.gpus < 0, f"an instance cannot have {cloud.gpus} GPUs", None),
        (cloud.local_ssds < 0, f"an instance cannot have {cloud.local_ssds} Local SSDs", None),
    )
    # fmt: on
    for is_wrong, message, again in rows:
        if is_wrong:
            raise InvalidOptionError(message, again) if again else ValueError(message)


def _network(text: str) -> str:
    """Return `text` in the CIDR notation of Compute Engine, ``203.0.113.7/32``."""
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        message = f"{text!r} is not a range of IPv4 addresses ({error}); write 203.0.113.7/32 or 198.51.100.0/24"
        raise InvalidOptionError(message, {"--ssh-from": None}) from None


def _accelerator_size(machine_type: str) -> int | None:
    """Return the number of vCPUs of a machine type that is named by its GPUs; None if it is unknown."""
    cpus_per_gpu = {"a2-highgpu": 12, "a2-ultragpu": 12, "a2-megagpu": 6, "a3-highgpu": 26, "a3-megagpu": 26}
    cpus_per_gpu |= {"a3-ultragpu": 28, "a4-highgpu": 28}
    series, _, size = machine_type.rpartition("-")
    if series not in cpus_per_gpu or not size.endswith("g") or not size[:-1].isdigit():
        return None
    return cpus_per_gpu[series] * int(size[:-1])


def _family(machine_type: str) -> str:
    return machine_type.partition("-")[0]
