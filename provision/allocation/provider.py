"""Nodes of an allocation as the hosts of a fleet."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.allocation.options import AllocationOptions
from provision.inventory.allocation import current_allocation, here, read_allocation
from provision.model import Finding
from provision.provider import ProviderError, Site
from provision.quantities import counted
from provision.static.provider import StaticProvider


class AllocationProvider(StaticProvider):
    """Assigns the nodes of an allocation to fleets, over SSH.

    Args:
        batch: ``slurm`` or ``pbs``.
        root: Directory of the records of the nodes of each fleet; created with the first fleet.
    """

    def __init__(self, batch: str, root: Path) -> None:
        super().__init__(root)
        self.name = batch

    @classmethod
    def open(cls, options: Any, site: Site) -> AllocationProvider:
        """Return the provider of the nodes of an allocation."""
        return cls(options.batch, site.directory / "static" / options.batch)

    @classmethod
    def change(cls, options: AllocationOptions, given: Mapping[str, Any]) -> AllocationOptions:
        """Return options with some changed, for the allocation in which this program runs, if any."""
        return replace(options, **{"inventory": current_allocation(options.batch) or options.inventory, **given})

    @classmethod
    def named_hosts(cls, options: Any) -> Sequence[str]:
        """Return the names of the selected nodes.

        Raises:
            ProviderError: this program does not run in an allocation.
        """
        return super().named_hosts(options) if options.inventory else [here(options.batch)]

    def doctor(self, workers: int = 1) -> list[Finding]:
        """Check that this program runs in an allocation, and that the OpenSSH programs are installed."""
        return [_finding(self.name), *super().doctor(workers)]


def _finding(batch: str) -> Finding:
    try:
        inventory = here(batch)
        nodes = read_allocation(inventory).names
    except ProviderError as error:
        program = "srun" if batch == "slurm" else "qsub"
        missing = "" if shutil.which(program) else f"; {program} is not on this computer either"
        return Finding("allocation", False, f"{error.message}{missing}", error.hint, error.next_steps)
    return Finding(
        "allocation", True, f"job {inventory.partition(':')[2]} has {counted(len(nodes), 'node')}: {', '.join(nodes)}"
    )
