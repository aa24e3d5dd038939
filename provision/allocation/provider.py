"""Nodes of an allocation as the hosts of a fleet."""

from __future__ import annotations

import shutil
from pathlib import Path

from provision.inventory.allocation import here, read_allocation
from provision.model import Finding
from provision.provider import ProviderError
from provision.quantities import counted
from provision.static.provider import StaticProvider


class AllocationProvider(StaticProvider):
    """Lends the nodes of an allocation, over SSH.

    Args:
        batch: ``slurm`` or ``pbs``.
        root: Directory that tells which nodes are in which fleet; made with the first fleet.
    """

    def __init__(self, batch: str, root: Path) -> None:
        super().__init__(root)
        self.name = batch

    def doctor(self) -> list[Finding]:
        """Whether this is inside an allocation, and the programs that know the user's SSH configuration are there."""
        return [_finding(self.name), *super().doctor()]


def _finding(batch: str) -> Finding:
    try:
        inventory = here(batch)
        nodes = read_allocation(inventory).names
    except ProviderError as error:
        program = "srun" if batch == "slurm" else "qsub"
        there = "" if shutil.which(program) else f"; there is no {program} on this computer either"
        return Finding("allocation", False, f"{error.message}{there}", error.next_step, error.hint)
    return Finding(
        "allocation", True, f"job {inventory.partition(':')[2]} has {counted(len(nodes), 'node')}: {', '.join(nodes)}"
    )
