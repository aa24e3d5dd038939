"""Variables that other launchers set for each process, and their values in a task of `fleet`.

Sources: https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html, https://slurm.schedmd.com/srun.html,
https://docs.pytorch.org/docs/stable/elastic/run.html, the manuals of MPICH (PMI) and MVAPICH2 (MV2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INDEX = (
    "RANK", "PMI_RANK", "PMIX_RANK", "PMI_ID", "MPI_RANKID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
    "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID", "SLURM_NODEID", "PBS_NODENUM", "PBS_TASKNUM", "TASK_INDEX",
)  # fmt: skip
COUNT = (
    "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "PBS_NUM_NODES", "FLUX_JOB_SIZE",
)  # fmt: skip
_VALUES = (
    ("TASK_INDEX", "$FLEET_TASK_INDEX"),
    ("|".join(INDEX), "$FLEET_RANK"),
    ("|".join(COUNT), "$FLEET_NUM_TASKS"),
    (r"\w*LOCAL_?RANK(?:ID)?|\w*NODE_RANK|SLURM_LOCALID", "0"),
    (r"\w*LOCAL_(?:WORLD_)?SIZE|SLURM_NTASKS_PER_NODE", "1"),
    (r"SLURM(?:_JOB|_STEP)?_NODELIST", '"$(echo $FLEET_ADDRESSES | sed s/:[0-9]*//g)"'),
    ("MASTER_ADDR", "${FLEET_ADDRESSES%%:*}"),
    ("MASTER_PORT", '"$(echo $FLEET_ADDRESSES | sed "s/,.*//; s/.*://")"'),
    ("SLURM_JOB_?ID|PBS_JOBID", "$FLEET_JOB_ID"),
)
"""Patterns of names, and values for a shell."""
LAUNCHERS = (
    r"(?:PMI|PMIX|OMPI|MV2|MPI|PALS|FLUX|SLURM|PBS)_\w+|RANK|WORLD_SIZE|MASTER_(?:ADDR|PORT)|"
    r"LOCAL_(?:RANK|WORLD_SIZE)|NODE_RANK"
)
"""Pattern of the names of all variables that other launchers set."""


def is_foreign(name: str) -> bool:
    """Return whether another launcher sets the variable `name`."""
    return re.fullmatch(LAUNCHERS, name) is not None


def assignments(names: Iterable[str]) -> str:
    """Return assignments for a shell that give variables their values in a task; others are omitted."""
    pairs = ((name, _value(name)) for name in dict.fromkeys(names))
    return " ".join(f"{name}={value}" for name, value in pairs if value)


def _value(name: str) -> str:
    return next((value for pattern, value in _VALUES if re.fullmatch(pattern, name)), "")
