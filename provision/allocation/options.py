"""Options of fleets on the nodes of an allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.options import ProviderOptions
from provision.static.options import StaticOptions


@dataclass(frozen=True)
class AllocationOptions(StaticOptions):
    """The nodes that the fleet uses.

    Attributes:
        inventory: The allocation, ``slurm:12``. It comes from the environment and is not an option.
    """

    implementation: ClassVar[str] = "provision.allocation.provider:AllocationProvider"
    resizable: ClassVar[bool] = False
    batch: ClassVar[str]

    inventory: str = ""

    def conflicts(self, existing: ProviderOptions) -> list[str]:
        """Return a clause for each option that cannot change; the allocation is one of them."""
        clauses = super().conflicts(existing)
        current = getattr(existing, "inventory", "")
        return (
            [*clauses, f"hosts of {self.inventory} requested, the fleet has those of {current}"]
            if current != self.inventory
            else clauses
        )


@dataclass(frozen=True)
class SlurmOptions(AllocationOptions):
    """Nodes of an allocation of Slurm."""

    title: ClassVar[str] = "Slurm"
    batch: ClassVar[str] = "slurm"


@dataclass(frozen=True)
class PbsOptions(AllocationOptions):
    """Nodes of an allocation of PBS."""

    title: ClassVar[str] = "PBS"
    batch: ClassVar[str] = "pbs"
