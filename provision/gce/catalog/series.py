"""Table of the series of machine types: their boot disks, network interfaces, processors, and how they are sold.

Sources: https://cloud.google.com/compute/docs/machine-resource and the page of each machine family there,
https://cloud.google.com/compute/docs/instances/provisioning-models,
https://cloud.google.com/compute/docs/instances/about-flex-start-vms, and
https://cloud.google.com/ai-hypercomputer/docs/consumption-models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from provision.deferred import dataclass

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


@dataclass(frozen=True)
class Series:
    """Properties that the machine types of a series share.

    Attributes:
        disks: Types of boot disks that are supported, the default first.
        gvnic: Instances have network interfaces of the type gVNIC only.
        arm: The processors are of the Arm architecture.
        compact: Compact placement is supported.
        models: Provisioning models that are sold; Flex-start VMs of N1 only with GPUs.
    """

    disks: tuple[str, ...] = _PERSISTENT
    gvnic: bool = False
    arm: bool = False
    compact: bool = False
    models: frozenset[str] = _ON_DEMAND


_EARLY = Series()
_FLEXIBLE = Series(models=_ALL)
_THIRD = Series(_BOTH, gvnic=True)
_LATEST = Series((HYPERDISK,), gvnic=True)
_LATEST_ARM = Series((HYPERDISK,), gvnic=True, arm=True)

UNKNOWN = Series((HYPERDISK,), models=_ALL)
"""A series that is not in the table, because it is newer: since 2024, new series support only Hyperdisk."""

_TABLE: Mapping[str, Series] = MappingProxyType(
    {
        **dict.fromkeys(("custom", "e2", "f1", "g1", "n2", "n2d", "t2d", "c2", "c2d", "m1", "m2"), _EARLY),
        **dict.fromkeys(("n1", "a2"), _FLEXIBLE),
        "t2a": Series(gvnic=True, arm=True),
        **dict.fromkeys(("c3", "c3d", "h3", "m3", "z3"), _THIRD),
        **dict.fromkeys(("c4", "c4d", "m4", "n4", "n4d", "x4"), _LATEST),
        **dict.fromkeys(("c4a", "n4a"), _LATEST_ARM),
        **dict.fromkeys(("h4d", "g4"), Series((HYPERDISK,), gvnic=True, models=_ALL)),
        "g2": Series(_SOLID_STATE, models=_ALL),
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
        *("a2", "a3", "a3-ultragpu", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d"),
        *("g2", "h3", "h4d", "n2", "n2d", "z3"),
        *(f"a3-highgpu-{gpus}g" for gpus in (1, 2, 4)),
    }
)
"""Source: https://cloud.google.com/compute/docs/instances/placement-policies-overview."""


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
