"""Series of machine types: their disks, network interfaces, processors, and how they are sold.

Source: https://cloud.google.com/compute/docs/machine-resource, and the page of each machine family there.
"""

from __future__ import annotations

from dataclasses import dataclass

STANDARD, SPOT, FLEX_START = "STANDARD", "SPOT", "FLEX_START"
RESERVATION_BOUND = "RESERVATION_BOUND"
_ALL = (STANDARD, SPOT)
_WITH_FLEX = (*_ALL, FLEX_START)
_ON_REQUEST = (SPOT, FLEX_START)
_DENSE = (*_ON_REQUEST, RESERVATION_BOUND)
_PERSISTENT = ("pd-standard", "pd-balanced", "pd-ssd")
_SSDS = ("pd-balanced", "pd-ssd")
_HYPERDISKS = ("hyperdisk-balanced",)


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

    disks: tuple[str, ...] = _PERSISTENT
    models: tuple[str, ...] = _ALL
    arm: bool = False
    gvnic: bool = False
    cpu_quota: str = ""
    migrates: bool | None = True

    @property
    def maintenance(self) -> tuple[str, ...]:
        """Return the possible values of ``onHostMaintenance`` of instances on demand.

        Source: https://cloud.google.com/compute/docs/instances/host-maintenance-overview#host_events.
        """
        return {True: ("MIGRATE", "TERMINATE"), False: ("TERMINATE",), None: ("MIGRATE",)}[self.migrates]

    @property
    def architecture(self) -> str:
        """``X86_64`` or ``ARM64``."""
        return "ARM64" if self.arm else "X86_64"


_SHARED = Series(cpu_quota="CPUS")
_NEW = Series(_HYPERDISKS, gvnic=True)
_NEW_ARM = Series(_HYPERDISKS, arm=True, gvnic=True)
_SERIES = {
    **dict.fromkeys(("custom", "e2", "f1", "g1"), _SHARED),
    "n1": Series(models=_WITH_FLEX, cpu_quota="CPUS"),  # Flex-start with GPUs only
    "n2": Series(cpu_quota="N2_CPUS"),
    "n2d": Series(cpu_quota="N2D_CPUS"),
    "t2d": Series(cpu_quota="T2D_CPUS"),
    "t2a": Series(arm=True, gvnic=True, cpu_quota="T2A_CPUS"),
    "c2": Series(cpu_quota="C2_CPUS"),
    "c2d": Series(cpu_quota="C2D_CPUS"),
    "c3": Series((*_SSDS, *_HYPERDISKS), gvnic=True, cpu_quota="C3_CPUS"),
    "c3d": Series((*_SSDS, *_HYPERDISKS), gvnic=True),
    **dict.fromkeys(("c4", "c4d", "n4", "n4d"), _NEW),
    "c3-standard-192-metal": Series((*_SSDS, *_HYPERDISKS), migrates=False, cpu_quota="C3_CPUS"),
    "h3": Series((*_SSDS, *_HYPERDISKS), gvnic=True, migrates=False),
    "h4d": Series(_HYPERDISKS, _WITH_FLEX, gvnic=True, migrates=False),
    "z3": Series((*_SSDS, *_HYPERDISKS), gvnic=True, migrates=None),
    **{
        f"z3-highmem-{size}": Series((*_SSDS, *_HYPERDISKS), gvnic=True, migrates=False)
        for size in ("88", "88-highlssd", "176", "176-standardlssd")  # more than 18 TiB of Titanium SSD
    },
    "z3-highmem-88-standardlssd": Series((*_SSDS, *_HYPERDISKS), gvnic=True, migrates=None),
    **dict.fromkeys(("c4a", "n4a", "n9a"), _NEW_ARM),
    "a2": Series(models=_WITH_FLEX, cpu_quota="A2_CPUS"),
    "a3": Series((*_SSDS, *_HYPERDISKS), _WITH_FLEX, gvnic=True),
    **{f"a3-highgpu-{gpus}g": Series((*_SSDS, *_HYPERDISKS), _ON_REQUEST, gvnic=True) for gpus in (1, 2, 4)},
    "a3-ultragpu": Series(_HYPERDISKS, _DENSE, gvnic=True),
    "a4": Series(_HYPERDISKS, _DENSE, gvnic=True),
    "a4x": Series(_HYPERDISKS, (), arm=True, gvnic=True),
    "a9": Series(_HYPERDISKS, _WITH_FLEX, gvnic=True),
    "g2": Series(_SSDS, _WITH_FLEX),
    "g4": Series(_HYPERDISKS, _WITH_FLEX, gvnic=True),
    "ct6e": _NEW,
}


def series_of(machine_type: str) -> Series:
    """Return the series of a machine type, by the longest prefix of its name."""
    words = machine_type.split("-")
    names = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    return next(_SERIES[name] for name in names if name in _SERIES)
