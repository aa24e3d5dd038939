"""The GPUs of Compute Engine: names, machine types with their series, driver, and SKUs of the price, each in one row.

Source of counts, machine types, and vCPU limits: https://cloud.google.com/compute/docs/gpus. A type that is missing
here can still be rented if a machine type comes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from provision.options import InvalidOptionError

STANDARD, SPOT, FLEX_START = "STANDARD", "SPOT", "FLEX_START"
RESERVATION_BOUND = "RESERVATION_BOUND"
ON_DEMAND, ON_REQUEST = frozenset({STANDARD, SPOT}), frozenset({SPOT, FLEX_START})
ALL_MODELS = ON_DEMAND | ON_REQUEST

PD_BALANCED, PD_SSD, PD_STANDARD, HYPERDISK = "pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"
PERSISTENT, SOLID_STATE = (PD_BALANCED, PD_SSD, PD_STANDARD), (PD_BALANCED, PD_SSD)


@dataclass(frozen=True)
class Series:
    """Properties that the machine types of a series share.

    Attributes:
        disks: Types of boot disks that are supported, the default first.
        gvnic: Instances have network interfaces of the type gVNIC only.
        arm: The processors are of the Arm architecture.
        compact: Compact placement is supported.
        models: Provisioning models that are sold; Flex-start VMs of N1 only with GPUs.
        cpus: vCPUs for each GPU, if the names of machine types have the number of GPUs, ``a2-highgpu-1g``.
        sku: Start of the descriptions of its SKUs; empty: the price is unknown, or part of that of the GPU.
        memory_gb: Memory of each vCPU by the kind of machine type, ``standard``; an empty kind: the series is one.
        local_ssd_gb: Size of the local SSDs that come with each vCPU.
    """

    disks: tuple[str, ...] = PERSISTENT
    gvnic: bool = False
    arm: bool = False
    compact: bool = False
    models: frozenset[str] = ON_DEMAND
    cpus: int = 0
    sku: str = ""
    memory_gb: Mapping[str, float] = field(default_factory=dict)
    local_ssd_gb: float = 0.0


@dataclass(frozen=True)
class Gpu:
    """A type of GPU.

    Attributes:
        short: Short name, ``t4``.
        accelerator: Name on Compute Engine, ``nvidia-tesla-t4``.
        sku: Start of the descriptions of its SKUs, which have its price.
        machine_types: Default machine type for each number of GPUs that one instance may have.
        cpus: Largest number of vCPUs for each number of GPUs, if it is attached to N1; empty: it comes with its own
            machine types only.
        has_open_driver: NVIDIA's open kernel modules support it: it is a Turing GPU or a newer one.
        series: The series of machine types that come with it, by the start of their names.
        others: Number of GPUs of further machine types that come with it.
        on_request: Numbers of GPUs that are sold as Spot and Flex-start VMs only.
    """

    short: str
    accelerator: str
    sku: str
    machine_types: Mapping[int, str]
    cpus: Mapping[int, int] = field(default_factory=dict)
    has_open_driver: bool = True
    series: Mapping[str, Series] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    on_request: Collection[int] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the numbers of GPUs that one instance may have."""
        return tuple(self.machine_types)

    @property
    def built_in(self) -> bool:
        """Return whether it comes with its own machine types only."""
        return not self.cpus

    @property
    def quota(self) -> str:
        """Return the name of the regional quota for it; that of spot instances has PREEMPTIBLE_ before it."""
        return f"NVIDIA_{self.short.upper().replace('-', '_')}_GPUS"


def _types(prefix: str, sizes: Mapping[int, object], suffix: str = "") -> dict[int, str]:
    """Return machine types by their number of GPUs, from their sizes by this number."""
    return {count: f"{prefix}-{size}{suffix}" for count, size in sizes.items()}


_N1 = _types("n1-standard", {1: 4, 2: 8, 4: 16})
_ITSELF = {1: 1, 2: 2, 4: 4, 8: 8}
_BOTH = (*SOLID_STATE, HYPERDISK)
_DENSE = ON_REQUEST | {RESERVATION_BOUND}
# Memory and local SSDs: https://cloud.google.com/compute/docs/accelerator-optimized-machines.
# fmt: off
_ALL = (
    Gpu("t4", "nvidia-tesla-t4", "Nvidia Tesla T4 GPU", _N1, {1: 48, 2: 48, 4: 96}),
    Gpu("l4", "nvidia-l4", "Nvidia L4 GPU", _types("g2-standard", {1: 8, 2: 24, 4: 48, 8: 96}),
        series={"g2": Series(SOLID_STATE, compact=True, models=ALL_MODELS, sku="G2 Instance",
            memory_gb={"standard": 4})},
        others=dict.fromkeys(("g2-standard-4", "g2-standard-12", "g2-standard-16", "g2-standard-32"), 1)),
    Gpu("p4", "nvidia-tesla-p4", "Nvidia Tesla P4 GPU", _N1, {1: 24, 2: 48, 4: 96}, has_open_driver=False),
    Gpu("p100", "nvidia-tesla-p100", "Nvidia Tesla P100 GPU", _N1, {1: 16, 2: 32, 4: 96}, has_open_driver=False),
    Gpu("v100", "nvidia-tesla-v100", "Nvidia Tesla V100 GPU", {**_N1, 8: "n1-standard-32"},
        {1: 12, 2: 24, 4: 48, 8: 96}, has_open_driver=False),
    Gpu("a100", "nvidia-tesla-a100", "Nvidia Tesla A100 GPU",
        {**_types("a2-highgpu", _ITSELF, "g"), 16: "a2-megagpu-16g"},
        series={
            "a2-highgpu": Series(compact=True, models=ALL_MODELS, cpus=12, sku="A2 Instance",
                memory_gb={"": 85 / 12}),
            "a2-megagpu": Series(compact=True, models=ALL_MODELS, cpus=6, sku="A2 Instance",
                memory_gb={"": 1360 / 96})}),
    Gpu("a100-80gb", "nvidia-a100-80gb", "Nvidia Tesla A100 80GB GPU", _types("a2-ultragpu", _ITSELF, "g"),
        series={"a2-ultragpu": Series(compact=True, models=ALL_MODELS, cpus=12, sku="A2 Instance",
            memory_gb={"": 170 / 12}, local_ssd_gb=375 / 12)}),
    Gpu("h100", "nvidia-h100-80gb", "Nvidia H100 80GB GPU", _types("a3-highgpu", _ITSELF, "g"), on_request=(1, 2, 4),
        series={"a3-highgpu": Series(_BOTH, gvnic=True, compact=True, models=ALL_MODELS, cpus=26, sku="A3 Instance",
            memory_gb={"": 234 / 26}, local_ssd_gb=750 / 26)}),
    Gpu("h100-mega", "nvidia-h100-mega-80gb", "Nvidia H100 80GB Mega GPU", {8: "a3-megagpu-8g"},
        series={"a3-megagpu": Series(_BOTH, gvnic=True, compact=True, models=ALL_MODELS, cpus=26,
            sku="A3Plus Instance", memory_gb={"": 1872 / 208}, local_ssd_gb=6000 / 208)}),
    Gpu("h200", "nvidia-h200-141gb", "H200 141GB GPU", {8: "a3-ultragpu-8g"},
        series={"a3-ultragpu": Series((HYPERDISK,), gvnic=True, compact=True, models=_DENSE, cpus=28,
            sku="A3Ultra Instance", memory_gb={"": 2952 / 224}, local_ssd_gb=12000 / 224)}),
    Gpu("b200", "nvidia-b200", "A4 Nvidia B200 (1 gpu slice)", {8: "a4-highgpu-8g"},
        series={"a4-highgpu": Series((HYPERDISK,), gvnic=True, compact=True, models=_DENSE, cpus=28)}),
    Gpu("rtx-pro-6000", "nvidia-rtx-pro-6000", "RTX 6000 96GB",
        _types("g4-standard", {1: 48, 2: 96, 4: 192, 8: 384}),
        series={"g4": Series((HYPERDISK,), gvnic=True, models=ALL_MODELS, sku="G4 Instance",
            memory_gb={"standard": 3.75}, local_ssd_gb=1500 / 48)}),
)
# fmt: on
GPUS: Mapping[str, Gpu] = {gpu.short: gpu for gpu in _ALL}
"""The types by their short names."""


def find_gpu(text: str) -> tuple[Gpu, int]:
    """Return the type and number of GPUs that ``t4``, ``t4:2``, or ``nvidia-tesla-t4:4`` denotes.

    Raises:
        ValueError: the type is unknown, or an instance cannot have this number; the text is for the user.
    """
    name, colon, number = text.strip().lower().partition(":")
    gpu = next((candidate for candidate in GPUS.values() if name in {candidate.short, candidate.accelerator}), None)
    if gpu is None:
        near = get_close_matches(name.removeprefix("nvidia-").removeprefix("tesla-"), GPUS, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        message = f"unknown GPU type {name or text!r}; {meant}choose from {', '.join(GPUS)}"
        raise InvalidOptionError(message, {"--gpu": f"{near[0]}{colon}{number}"}) if near else ValueError(message)
    if not colon:
        return gpu, gpu.counts[0]
    asked = int(number) if number.isascii() and number.isdigit() else 0
    if asked not in gpu.counts:
        nearest = min(gpu.counts, key=lambda count: abs(count - asked))
        message = f"an instance cannot have {number or 'no'} {gpu.short} GPUs; it can have {listed(gpu.counts)}"
        raise InvalidOptionError(message, {"--gpu": f"{gpu.short}:{nearest}"})
    return gpu, asked


def listed(items: Iterable[object]) -> str:
    """Return the items as text, ``1, 2 or 4``."""
    words = [str(item) for item in items]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
