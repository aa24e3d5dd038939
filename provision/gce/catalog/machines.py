"""Machine types of Compute Engine and their GPUs; completes and checks the options of a user.

Sources: https://cloud.google.com/compute/docs/gpus, https://cloud.google.com/compute/docs/machine-resource and the
page of each machine family there, https://cloud.google.com/compute/docs/instances/provisioning-models,
https://cloud.google.com/compute/docs/instances/about-flex-start-vms,
https://cloud.google.com/ai-hypercomputer/docs/consumption-models, and
https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds. A GPU type that is not listed can be
rented if a machine type comes with it.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from google.cloud import compute_v1

from provision.gce.catalog.gpus import (
    ALL_MODELS,
    FLEX_START,
    GPUS,
    HYPERDISK,
    ON_REQUEST,
    RESERVATION_BOUND,
    SOLID_STATE,
    SPOT,
    STANDARD,
    Gpu,
    Series,
    find_gpu,
    listed,
)
from provision.gce.catalog.names import is_region, is_zone, last, network_of, subnetwork_of
from provision.gce.options import (
    IDLE_TIMEOUT_MIN_S,
    LOCAL_SSD,
    MAX_DURATION_MAX_S,
    GceOptions,
    Row,
    check_bucket,
    refuse,
    with_storage_scope,
)
from provision.model import Command
from provision.options import InvalidOptionError
from provision.provider import ErrorKind, ProviderError
from provision.quantities import format_duration

_BOTH, _HYPERDISK = (*SOLID_STATE, HYPERDISK), (HYPERDISK,)
UNKNOWN = Series(_HYPERDISK, models=ALL_MODELS)
"""A series that is not in the table, because it is newer: since 2024, new series support only Hyperdisk."""


def _sizes(standard: float, highmem: float, highcpu: float) -> dict[str, float]:
    return {"standard": standard, "highmem": highmem, "highcpu": highcpu}


# Memory: https://cloud.google.com/compute/docs/general-purpose-machines. Compact placement:
# https://cloud.google.com/compute/docs/instances/placement-policies-overview.
# fmt: off
_GENERAL: Mapping[str, Series] = {
    **dict.fromkeys(("f1", "g1", "m1", "m2"), Series()),
    "e2": Series(sku="E2 Instance", memory_gb=_sizes(4, 8, 1)),
    "t2d": Series(sku="T2D AMD Instance", memory_gb={"standard": 4}),
    "custom": Series(),
    "n1": Series(models=ALL_MODELS, sku="N1 Predefined Instance",
        memory_gb=_sizes(3.75, 6.5, 0.9)),
    "n2": Series(compact=True, sku="N2 Instance", memory_gb=_sizes(4, 8, 1)),
    "n2d": Series(compact=True, sku="N2D AMD Instance", memory_gb=_sizes(4, 8, 1)),
    "c2": Series(compact=True, sku="Compute optimized", memory_gb={"standard": 4}),
    "c2d": Series(compact=True, sku="C2D AMD Instance", memory_gb=_sizes(4, 8, 2)),
    "t2a": Series(gvnic=True, arm=True),
    "c3": Series(_BOTH, gvnic=True, compact=True, sku="C3 Instance", memory_gb=_sizes(4, 8, 2)),
    "c3d": Series(_BOTH, gvnic=True, compact=True, sku="C3D Instance", memory_gb=_sizes(4, 8, 2)),
    "m3": Series(_BOTH, gvnic=True),
    **dict.fromkeys(("h3", "z3"), Series(_BOTH, gvnic=True, compact=True)),
    "n4": Series(_HYPERDISK, gvnic=True, sku="N4 Instance", memory_gb=_sizes(4, 8, 2)),
    "c4": Series(_HYPERDISK, gvnic=True, compact=True, sku="C4 Instance", memory_gb=_sizes(3.75, 7.75, 2)),
    "c4d": Series(_HYPERDISK, gvnic=True, compact=True),
    **dict.fromkeys(("m4", "n4d", "x4"), Series(_HYPERDISK, gvnic=True)),
    **dict.fromkeys(("c4a", "n4a"), Series(_HYPERDISK, gvnic=True, arm=True)),
    "h4d": Series(_HYPERDISK, gvnic=True, compact=True, models=ALL_MODELS),
    "a4x": Series(_HYPERDISK, gvnic=True, arm=True, models=frozenset()),
}
# fmt: on
_BY_COUNT = {
    gpu.machine_types[count]: replace(series, models=ON_REQUEST)
    for gpu in GPUS.values()
    for series in gpu.series.values()
    for count in gpu.on_request
}
SERIES: Mapping[str, Series] = MappingProxyType(
    {**_GENERAL, **{name: series for gpu in GPUS.values() for name, series in gpu.series.items()}, **_BY_COUNT}
)
"""The series by the start of the names of their machine types."""

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
    series = next((SERIES[prefix] for prefix in prefixes if prefix in SERIES), UNKNOWN)
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
_GPU_COUNT = re.compile(r"-([0-9]+)g\Z", re.ASCII)
_TPU = re.compile(r"ct[0-9]|tpu[0-9]", re.ASCII)
_LIST_IMAGES = ("gcloud", "compute", "images", "list")
_LIST_DRIVERS = (
    *(*_LIST_IMAGES, "--project", "deeplearning-platform-release"),
    *("--no-standard-images", "--show-deprecated"),
)
_OPEN_DRIVER = re.compile(r"projects/deeplearning-platform-release/.*-nvidia-(?:5[7-9]|[6-9][0-9])[0-9]\b", re.ASCII)
"""Images with NVIDIA's open kernel modules: those of Google with driver 570 or a later one."""
COMPACT, ANY = "compact", "any"
"""Placements of the instances of a fleet."""
_FAST_NETWORK = re.compile(r"a3-(?!highgpu-[124]g)|a4-", re.ASCII)
"""Machine types whose GPUs communicate with those of other instances directly."""
_ACCELERATED = re.compile(r"[ag][0-9]+x?-", re.ASCII)
"""Families of machine types that come with GPUs, including future ones."""
_GPU_FAMILIES = frozenset({"a4x", *(name.partition("-")[0] for gpu in GPUS.values() for name in gpu.series)})
_SHARED_CORE = MappingProxyType({"f1-micro": 1, "g1-small": 1, "e2-micro": 2, "e2-small": 2, "e2-medium": 2})
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z0-9][a-z0-9-]*", re.ASCII)
"""ID of a project, or its number: https://cloud.google.com/resource-manager/docs/creating-managing-projects."""
_IMAGE = re.compile(
    r"(?:https://[a-z.]+/compute/[a-z0-9]+/)?projects/[^/]+/global/images/(?:family/)?[^/]+", re.ASCII
)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._:/-]")


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
    cloud = _with_gpus(replace(cloud, ssh_from=tuple(_network(text) for text in cloud.ssh_from)))
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    close = _FAST_NETWORK.match(machine_type) and not cloud.flex_start and not cloud.reservation
    cloud = replace(
        with_storage_scope(cloud),
        machine_type=machine_type,
        placement=cloud.placement or (COMPACT if close else ANY),
        disk_type=cloud.disk_type or default_disk_type(machine_type),
    )
    return replace(cloud, image=cloud.image or _default_image(cloud))


def _default_image(cloud: GceOptions) -> str:
    if has_gpus(cloud):
        return GPU_IMAGE
    return ARM_IMAGE if series_of(cloud.machine_type).arm else CPU_IMAGE


def refusal(cloud: GceOptions) -> ProviderError | None:
    """Return the error that instances with the resolved options `cloud` are not sold or cannot work; None if none."""
    machine_type, series, gpu = cloud.machine_type, series_of(cloud.machine_type), gpu_of(cloud)
    name = gpu.short.upper() if gpu else ""
    image = "the default image" if cloud.image == GPU_IMAGE else f"the image {last(cloud.image)!r}"
    has_open_modules = _OPEN_DRIVER.search(cloud.image) is not None
    lacks_gpus = _family(machine_type) == "n1" and not cloud.gpus
    whole = ", or all 8 GPUs of a machine: --gpu h100:8" if machine_type.startswith("a3-highgpu-") else ""
    # fmt: off
    rows = (
        (_TPU.match(machine_type), _refused(f"{machine_type} has TPUs, which are not supported",
            "select a machine type with GPUs, --gpu, or without accelerators", {"--machine-type": None})),
        (gpu and not gpu.has_open_driver and has_open_modules, _refused(
            f"{image} does not support the {name}: it has NVIDIA's open kernel modules, "
            "which need a Turing GPU (T4) or a newer one",
            f"select a newer GPU, or an image with the proprietary driver for the {name}: "
            "--image projects/PROJECT/global/images/IMAGE", {"--gpu": "t4"}, _LIST_DRIVERS)),
        (series.arm and has_gpus(cloud), _arm_refusal(machine_type)),
        (cloud.flex_start and (FLEX_START not in series.models or lacks_gpus), _refused(
            f"{describe(cloud)} is not available as a Flex-start VM",
            "select a machine type with GPUs, or an H4D machine type; or remove --flex-start",
            {"--flex-start": None, "--wait": None})),
        (provisioning_model(cloud) not in series.models, _refused(f"{machine_type} is not available on demand",
            f"use Spot VMs, or Flex-start VMs (--flex-start){whole}", {"--spot": True})),
        (cloud.placement == COMPACT and not series.compact and series is not UNKNOWN, _refused(
            f"{machine_type} does not support compact placement",
            "select a machine type of another series, such as N2, C2, G2, or A2, or leave --placement out",
            {"--placement": None})),
    )
    # fmt: on
    return next((error for applies, error in rows if applies), None)


def _refused(
    message: str, hint: str, again: Mapping[str, str | bool | None], command: Command | None = None
) -> ProviderError:
    return ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=[command] if command else [], again=again)


def _arm_refusal(machine_type: str) -> ProviderError:
    return _refused(
        f"{machine_type} has Arm processors, for which TensorFlow is not available with GPU support",
        "select GPUs of a machine type with x86 processors",
        {"--machine-type": None, "--gpu": "b200:8", "--spot": True},
    )


def provisioning_model(cloud: GceOptions) -> str:
    """Return the provisioning model of instances, as Compute Engine names it."""
    if cloud.spot:
        return SPOT
    if cloud.reservation and RESERVATION_BOUND in series_of(cloud.machine_type).models:
        return RESERVATION_BOUND
    return FLEX_START if cloud.flex_start else STANDARD


def is_incomplete(cloud: GceOptions) -> bool:
    """Return whether only Compute Engine knows the GPUs or the processors of the machine type of `cloud`."""
    unknown = series_of(cloud.machine_type) is UNKNOWN
    return unknown or (not cloud.gpus and _ACCELERATED.match(cloud.machine_type) is not None)


def completed(cloud: GceOptions, machine_type: compute_v1.MachineType) -> GceOptions:
    """Return the resolved options `cloud` with the GPUs of their machine type, and an image for its processors.

    Raises:
        ProviderError: it has GPUs with Arm processors.
    """
    arm = machine_type.architecture == "ARM64"
    for gpus in machine_type.accelerators[:1]:
        cloud = replace(cloud, gpu=gpus.guest_accelerator_type, gpus=gpus.guest_accelerator_count)
    if arm and has_gpus(cloud):
        raise _arm_refusal(cloud.machine_type)
    if cloud.image == CPU_IMAGE and (machine_type.accelerators or arm):
        cloud = replace(cloud, image=GPU_IMAGE if machine_type.accelerators else ARM_IMAGE)
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
    if custom := _CUSTOM.fullmatch(machine_type):
        return int(custom[1])
    if gpus := _GPU_COUNT.search(machine_type):
        return series_of(machine_type).cpus * int(gpus[1]) or None
    size = _SIZE.search(machine_type)
    return int(size[1]) if size else None


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
    built_in, number = _built_in(cloud.machine_type)
    if not cloud.gpu:
        if cloud.gpus:
            raise ValueError(f"the type of the {cloud.gpus} GPUs is missing; choose from {', '.join(GPUS)}")
        return replace(cloud, gpu=built_in.accelerator, gpus=number) if built_in else cloud
    if cloud.gpus and cloud.machine_type and gpu_of(cloud) is None and _ACCELERATED.match(cloud.machine_type):
        return cloud  # as Compute Engine reported
    gpu, count = find_gpu(f"{cloud.gpu}:{cloud.gpus}" if cloud.gpus else cloud.gpu)
    if not cloud.gpus and built_in is gpu:
        count = number
    default = gpu.machine_types[count]
    cloud = replace(cloud, gpu=gpu.accelerator, gpus=count, machine_type=cloud.machine_type or default)
    size, most = cpus(cloud.machine_type), gpu.cpus.get(count, 0)
    machine_type, named, others = cloud.machine_type, gpu.accelerator, {"--machine-type": None}
    # fmt: off
    rows: Sequence[Row] = (
        (gpu.built_in and built_in is not gpu, f"{named} is available only with the machine types "
            f"{listed(gpu.machine_types.values())}; not with {machine_type}", others),
        (gpu.built_in and number != count, f"{machine_type} comes with {number} {named}, not {count}; "
            f"{default} has {count}", {"--machine-type": default}),
        (not gpu.built_in and _family(machine_type) not in ("n1", "custom"), f"{named} can be attached to N1 machine "
            f"types only, such as {default}; {machine_type} is not an N1 machine type", others),
        (not gpu.built_in and (size or 0) > most,
            f"with {count} {named}, an instance has at most {most} vCPUs; {machine_type} has {size}", others),
    )
    # fmt: on
    if machine_type != default:
        refuse(rows)
    return cloud


def _built_in(machine_type: str) -> tuple[Gpu | None, int]:
    """Return type and number of the GPUs that come with `machine_type`; None if they are not listed."""
    for gpu in GPUS.values():
        counts = {name: count for count, name in gpu.machine_types.items()} | dict(gpu.others)
        if gpu.built_in and machine_type in counts:
            return gpu, counts[machine_type]
    return None, 0


def _check_words(cloud: GceOptions) -> None:
    """Check names that are sent as parts of URLs and requests."""
    machine_type, image, project, reservation = cloud.machine_type, cloud.image, cloud.project, cloud.reservation
    zone = next((each for each in cloud.zones if not is_zone(each) and not is_region(each)), "")
    lower = zone.lower()
    names = {"image": image, "disk type": cloud.disk_type, "network": cloud.network, "subnetwork": cloud.subnetwork}
    refuse((_NOT_A_NAME.search(text), f"invalid {noun} {text!r}", None) for noun, text in names.items())
    host, subnetwork = network_of(cloud.network).project, subnetwork_of(cloud.subnetwork)
    # fmt: off
    refuse([(zone, f"{zone!r} is neither a zone nor a region; zones are called like us-central1-a, regions like "
        "us-central1", {"--zone": lower if is_zone(lower) or is_region(lower) else None})],
        ("gcloud", "compute", "zones", "list"))
    refuse([(machine_type and not _MACHINE_TYPE.fullmatch(machine_type),
        f"invalid machine type {machine_type!r}; expected e.g. {DEFAULT_MACHINE_TYPE}", {"--machine-type": None})],
        ("gcloud", "compute", "machine-types", "list"))
    refuse([(project and not _PROJECT.fullmatch(project),
        f"invalid project {project!r}; give its ID, which is not its name", None)], ("gcloud", "projects", "list"))
    refuse((
        (cloud.placement not in ("", COMPACT, ANY),
            f"invalid placement {cloud.placement!r}; choose from {COMPACT}, {ANY}", {"--placement": None}),
        (subnetwork.project and subnetwork.project != (host or project or subnetwork.project),
            f"subnetwork {cloud.subnetwork!r} is not in network {cloud.network!r}: "
            f"select its network, --network projects/{subnetwork.project}/global/networks/NAME", None),
        (reservation and not _RESERVATION.fullmatch(reservation),
            f"invalid reservation {reservation!r}; expected its name, or projects/PROJECT/reservations/NAME", None),
        (reservation and (cloud.spot or cloud.flex_start), "--reservation excludes --spot and --flex-start",
            {"--spot": None, "--flex-start": None, "--wait": None}),
    ))
    refuse((
        (image and "/" not in image, f"the project of image {image!r} is missing; "
            f"write projects/PROJECT/global/images/family/{image}", None),
        (image and not _IMAGE.fullmatch(image), f"invalid image {image!r}; write "
            "projects/PROJECT/global/images/family/FAMILY, or projects/PROJECT/global/images/IMAGE", None),
    ), _LIST_IMAGES if "/" in image else (*_LIST_IMAGES, f"--filter=name:{image}"))
    # fmt: on


def _check_numbers(cloud: GceOptions) -> None:
    """Raise ValueError for amounts and times that Compute Engine does not accept.

    Source: https://cloud.google.com/compute/docs/instances/about-flex-start-vms.
    """
    lifetime_s, idle_s, wait_s, is_flex = cloud.max_duration_s, cloud.idle_timeout_s, cloud.wait_s, cloud.flex_start
    nearest_wait_s = min(max(wait_s, FLEX_WAIT_MIN_S), FLEX_WAIT_MAX_S)
    # fmt: off
    rows: Sequence[Row] = (
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
        (min(cloud.gpus, cloud.local_ssds) < 0, "an instance cannot have fewer than 0 GPUs or Local SSDs", None),
    )
    # fmt: on
    refuse(rows)


def _network(text: str) -> str:
    """Return `text` in the CIDR notation of Compute Engine, ``203.0.113.7/32``."""
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        message = f"{text!r} is not a range of IPv4 addresses ({error}); write 203.0.113.7/32 or 198.51.100.0/24"
        raise InvalidOptionError(message, {"--ssh-from": None}) from None


def _family(machine_type: str) -> str:
    return machine_type.partition("-")[0]
