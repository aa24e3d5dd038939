"""Table of the series of machine types: their disks, network interfaces, processors, and how they are sold.

Sources: https://cloud.google.com/compute/docs/machine-resource and the page of each machine family there,
https://cloud.google.com/compute/docs/instances/provisioning-models,
https://cloud.google.com/compute/docs/instances/about-flex-start-vms,
https://cloud.google.com/ai-hypercomputer/docs/consumption-models, and
https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

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
