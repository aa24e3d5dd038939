"""The rank of this process in a parallel start, from the environment that the launcher sets.

Slurm: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES; PBS: ``man pbsdsh``, and "Environment
Variables" of the OpenPBS user's guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provision.inventory.allocation import expand_nodelist, parse_nodefile
from provision.inventory.files import InventoryError

RANKS_MAX = 10_000
"""More processes than this are an error."""

# MPI launchers also run in the allocations of Slurm and PBS, so their variables are read first.
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
# Slurm numbers the steps of batch scripts and shells from here.
_SPECIAL_STEPS = 0xFFFFFF00
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")

Read = Callable[[Path], str]


@dataclass(frozen=True)
class Launch:
    """A process of several that were started together.

    Attributes:
        rank: Number of the process, from 0.
        size: Number of processes; 0: known only to the process with rank 0.
        nodes: Names of the nodes, the first is that of rank 0; empty: unknown.
        job: Name that the batch system has for this start, valid in a file name; empty: none.
        directory: Directory in which the user submitted the job; empty: the working directory.
        shared: The node may have started several processes of this rank, of which only one is used.
    """

    rank: int
    size: int
    nodes: tuple[str, ...] = ()
    job: str = ""
    directory: str = ""
    shared: bool = False

    def node(self, rank: int) -> str:
        """Return the node of a rank; empty if it is not certain."""
        return self.nodes[rank] if 0 < len(self.nodes) == self.size else ""


def find_launch(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    size: int | None = None,
    nodes: str = "",
    read: Read = Path.read_text,
) -> Launch:
    """Return the rank of this process and the start that it belongs to.

    Args:
        environ: The environment of the process.
        rank: Option of the user, which overrides the environment, as the next two do; None: not given.
        size: Number of processes; None: not given.
        nodes: Expression of the nodes; empty: not given.
        read: Reads the node file of PBS.

    Raises:
        InventoryError: the rank is unknown or invalid.
    """
    if (rank is None) != (size is None):
        raise InventoryError("--rank and --size must be given together", hint="for example --rank 0 --size 2")
    if rank is not None and size is not None:
        launch: Launch | None = Launch(rank, size, job=_allocation(environ))
    else:
        launch = _mpi(environ) or _slurm(environ) or _pbs(environ, read)
    if launch is None:
        raise InventoryError(
            "rank and size of this process are unknown",
            cause="no environment of Slurm, PBS, or MPI found",
            hint="start it with srun, pbsdsh, or mpiexec, or give --rank, --size, and --rendezvous",
        )
    if nodes:
        launch = replace(launch, nodes=expand_nodelist(nodes))
    if launch.size and not 0 <= launch.rank < launch.size <= RANKS_MAX:
        raise InventoryError(f"rank {launch.rank} of {launch.size} processes is invalid", cause="ranks start at 0")
    return launch


def _mpi(environ: Mapping[str, str]) -> Launch | None:
    for rank, size in _MPI:
        if rank in environ and size in environ:
            return Launch(_number(environ, rank), _number(environ, size), job=_allocation(environ))
    return None


def _allocation(environ: Mapping[str, str]) -> str:
    """Return the allocation in which another launcher started this process."""
    return _file_name(environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or "")


def _slurm(environ: Mapping[str, str]) -> Launch | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdigit() or int(step) >= _SPECIAL_STEPS:
        raise InventoryError(
            f"job {environ['SLURM_JOB_ID']} of Slurm did not start this process on all its nodes",
            cause="only srun starts a process on each node",
            hint="start it with srun: srun fleet agent task.py",
        )
    sizes = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environ]
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return Launch(
        _number(environ, "SLURM_PROCID"),
        _number(environ, sizes[0] if sizes else "SLURM_NTASKS"),
        expand_nodelist(nodes) if nodes else (),
        _file_name(f"{environ['SLURM_JOB_ID']}.{step}"),
    )


def _pbs(environ: Mapping[str, str], read: Read) -> Launch | None:
    """Return the start by pbsdsh: one process for each slot; only the first node has the node file."""
    if "PBS_JOBID" not in environ:
        return None
    if "PBS_NODENUM" not in environ:
        raise InventoryError(
            "PBS did not set the index of this node (PBS_NODENUM)",
            hint="start it with pbsdsh or mpiexec, or give --rank and --size",
        )
    rank = _number(environ, "PBS_NODENUM")
    nodes: tuple[str, ...] = ()
    path = Path(environ.get("PBS_NODEFILE", ""))
    try:
        nodes = parse_nodefile(read(path), path)
    except (OSError, UnicodeDecodeError):
        if rank == 0:
            raise InventoryError(
                "the node file of PBS cannot be read (PBS_NODEFILE)",
                hint="start it with pbsdsh or mpiexec, or give --rank and --size",
            ) from None
    if rank == 0 and len(nodes) > 1 and environ.get("PBS_TASKNUM") == "1":
        raise InventoryError(
            f"job {environ['PBS_JOBID']} of PBS did not start this process on all its nodes",
            cause="only pbsdsh starts a process on each node",
            hint="start it with pbsdsh: pbsdsh -- fleet agent task.py",
        )
    directory = environ.get("PBS_O_WORKDIR", "")
    return Launch(rank, len(nodes), nodes, _file_name(environ["PBS_JOBID"]), directory, shared=True)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InventoryError(f"{name} is not a number: {text[:60]!r}")
    return int(text)


def _file_name(text: str) -> str:
    """Return `text` without characters that are invalid in file names; PBS arrays are named ``12[3].server``."""
    return _FORBIDDEN.sub("-", text).strip("-.")[:80]
