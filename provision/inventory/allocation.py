"""The allocation of a batch system as an inventory: its nodes are the hosts, in their order.

Instead of a file path, its name is ``slurm:12`` or ``pbs:12.server``, after its job, so that fleets of different
allocations are distinct.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from provision.inventory.errors import InventoryError
from provision.inventory.nodelist import expand_nodelist, parse_nodefile
from provision.inventory.plain import read_plain
from provision.inventory.reader import Inventory
from provision.provider import ErrorKind, ProviderError

_JOBS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID"}
_CALLED = {"slurm": "Slurm", "pbs": "PBS"}
_ENTER = {
    "slurm": "run salloc -N 2, then fleet up --provider slurm, or both in a script for sbatch",
    "pbs": "run qsub -I -l select=2, then fleet up --provider pbs, or both in a script for qsub",
}


def current_allocation(batch: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the allocation of a batch system in which this program runs, ``slurm:12``; empty if there is none."""
    job = environ.get(_JOBS[batch], "")
    return f"{batch}:{job}" if job else ""


def here(batch: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the allocation of a batch system in which this program runs, ``slurm:12``.

    Raises:
        ProviderError: there is none.
    """
    if not (allocation := current_allocation(batch, environ)):
        raise ProviderError(
            ErrorKind.USAGE,
            f"not inside a {_CALLED[batch]} allocation",
            cause=f"{_JOBS[batch]} is not set",
            hint=_ENTER[batch],
        )
    return allocation


def is_allocation(inventory: str) -> bool:
    """Return True if an inventory is the allocation of a batch system; paths of files are absolute."""
    return inventory.partition(":")[0] in _JOBS


def read_allocation(inventory: str, environ: Mapping[str, str] = os.environ) -> Inventory:
    """Return the nodes of an allocation, each counted once.

    Args:
        inventory: From `here`.
        environ: Environment of this program, which must run in the allocation.

    Raises:
        ProviderError: it does not, or the variables of the batch system cannot be read.
    """
    batch, _, job = inventory.partition(":")
    if here(batch, environ) != inventory:
        raise ProviderError(
            ErrorKind.USAGE,
            f"not inside the {_CALLED[batch]} allocation {job}",
            cause=f"this is allocation {environ[_JOBS[batch]]}",
            hint="delete the fleet and create it again here, or use another name: --fleet NAME",
            next_steps=[("fleet", "down")],
        )
    path, names = _slurm(environ) if batch == "slurm" else _pbs(environ)
    return Inventory(path, "plain", read_plain("\n".join(names), path))


def _slurm(environ: Mapping[str, str]) -> tuple[Path, tuple[str, ...]]:
    return Path("/$SLURM_JOB_NODELIST"), expand_nodelist(environ.get("SLURM_JOB_NODELIST", ""))


def _pbs(environ: Mapping[str, str]) -> tuple[Path, tuple[str, ...]]:
    path = Path(environ.get("PBS_NODEFILE", ""))
    try:
        return path, parse_nodefile(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise InventoryError(
            f"the node file of PBS cannot be read: {path}" if path.name else "PBS_NODEFILE is not set",
            cause=error.strerror or "" if isinstance(error, OSError) else "it is not text",
            hint="run fleet on the first node of the job, where PBS starts its script",
        ) from error
