"""The GPUs of Compute Engine: names, machine types, driver, and price, each in one row.

Source of counts, machine types, and vCPU limits: https://cloud.google.com/compute/docs/gpus. A type that is missing
here can still be rented if a machine type comes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from provision.options import InvalidOptionError


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
    """

    short: str
    accelerator: str
    sku: str
    machine_types: Mapping[int, str]
    cpus: Mapping[int, int] = field(default_factory=dict)
    has_open_driver: bool = True

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
        """Return the name of the regional quota for it."""
        return f"NVIDIA_{self.short.upper().replace('-', '_')}_GPUS"

    @property
    def spot_quota(self) -> str:
        """Return the name of the regional quota for it on spot instances."""
        return f"PREEMPTIBLE_{self.quota}"


def _series(prefix: str, sizes: Mapping[int, object], suffix: str = "") -> dict[int, str]:
    """Return machine types by their number of GPUs, from their sizes by this number."""
    return {count: f"{prefix}-{size}{suffix}" for count, size in sizes.items()}


_N1 = _series("n1-standard", {1: 4, 2: 8, 4: 16})
_ITSELF = {1: 1, 2: 2, 4: 4, 8: 8}
_A2, _A3 = _series("a2-highgpu", _ITSELF, "g"), _series("a3-highgpu", _ITSELF, "g")
# fmt: off
_ALL = (
    Gpu("t4", "nvidia-tesla-t4", "Nvidia Tesla T4 GPU", _N1, {1: 48, 2: 48, 4: 96}),
    Gpu("l4", "nvidia-l4", "Nvidia L4 GPU", _series("g2-standard", {1: 8, 2: 24, 4: 48, 8: 96})),
    Gpu("p4", "nvidia-tesla-p4", "Nvidia Tesla P4 GPU", _N1, {1: 24, 2: 48, 4: 96}, has_open_driver=False),
    Gpu("p100", "nvidia-tesla-p100", "Nvidia Tesla P100 GPU", _N1, {1: 16, 2: 32, 4: 96}, has_open_driver=False),
    Gpu("v100", "nvidia-tesla-v100", "Nvidia Tesla V100 GPU", {**_N1, 8: "n1-standard-32"},
        {1: 12, 2: 24, 4: 48, 8: 96}, has_open_driver=False),
    Gpu("a100", "nvidia-tesla-a100", "Nvidia Tesla A100 GPU", {**_A2, 16: "a2-megagpu-16g"}),
    Gpu("a100-80gb", "nvidia-a100-80gb", "Nvidia Tesla A100 80GB GPU", _series("a2-ultragpu", _ITSELF, "g")),
    Gpu("h100", "nvidia-h100-80gb", "Nvidia H100 80GB GPU", _A3),
    Gpu("h100-mega", "nvidia-h100-mega-80gb", "Nvidia H100 80GB Mega GPU", {8: "a3-megagpu-8g"}),
    Gpu("h200", "nvidia-h200-141gb", "H200 141GB GPU", {8: "a3-ultragpu-8g"}),
    Gpu("b200", "nvidia-b200", "A4 Nvidia B200 (1 gpu slice)", {8: "a4-highgpu-8g"}),
    Gpu("rtx-pro-6000", "nvidia-rtx-pro-6000", "RTX 6000 96GB",
        _series("g4-standard", {1: 48, 2: 96, 4: 192, 8: 384})),
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
    if not number.isascii() or not number.isdigit() or int(number) not in gpu.counts:
        asked = int(number) if number.isascii() and number.isdigit() else 0
        near_count = min(gpu.counts, key=lambda count: abs(count - asked))
        raise InvalidOptionError(
            f"an instance cannot have {number or 'no'} {gpu.short} GPUs; it can have {listed(gpu.counts)}",
            {"--gpu": f"{gpu.short}:{near_count}"},
        )
    return gpu, int(number)


def listed(items: Iterable[object]) -> str:
    """Return the items as text, ``1, 2 or 4``."""
    words = [str(item) for item in items]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
