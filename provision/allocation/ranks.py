"""Which process of a parallel start this is, as the launcher tells each of them.

Slurm: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES; PBS: ``man pbsdsh``, and "Environment
Variables" of the OpenPBS user's guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.inventory.nodelist import NodelistError
from provision.inventory.pbs import parse_nodefile
from provision.inventory.slurm import expand_nodelist

RANKS_MAX = 10_000
"""More processes than this are taken for a mistake."""

# Of launchers that start processes in the allocations of others, too, and by others: they are asked first.
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
# Steps that Slurm makes for a batch script or a shell have numbers from here on.
_SPECIAL_STEPS = 0xFFFFFF00
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")

Read = Callable[[Path], str]


@dataclass(frozen=True)
class Launch:
    """One of several processes that were started together.

    Attributes:
        rank: Its number, from 0.
        size: How many there are; 0: only the process with rank 0 knows.
        nodes: Names of the nodes, the first one that of rank 0; empty: not known.
        job: What the batch system calls this start, to be part of a file's name; empty: it has no name for it.
        directory: Where the user submitted the job, where the process was started elsewhere; empty: right here.
        shared: The node may have been given several processes of this rank, of which one is meant.
    """

    rank: int
    size: int
    nodes: tuple[str, ...] = ()
    job: str = ""
    directory: str = ""
    shared: bool = False

    def node(self, rank: int) -> str:
        """The node of a rank; empty where that is not certain."""
        return self.nodes[rank] if 0 < len(self.nodes) == self.size else ""


@dataclass(frozen=True)
class Given:
    """What the user said of the start; None and empty: nothing."""

    rank: int | None = None
    size: int | None = None
    nodes: str = ""


def find_launch(given: Given, environ: Mapping[str, str], read: Read = Path.read_text) -> Launch:
    """Which process this is.

    Args:
        given: Goes before all that the environment says.
        environ: The environment of the process.
        read: Reads the node file of PBS.

    Raises:
        NodelistError: nobody says, or what is said makes no sense.
    """
    launch = _explicit(given, environ) or _mpi(environ) or _slurm(environ) or _pbs(environ, read)
    if launch is None:
        raise NodelistError(
            "fleet agent does not know which of how many processes it is",
            cause="neither Slurm, PBS nor mpiexec has told it",
            hint="start it with srun, pbsdsh, or mpiexec, or give --rank, --size, and --rendezvous",
        )
    if given.nodes:
        launch = Launch(
            launch.rank, launch.size, expand_nodelist(given.nodes), launch.job, launch.directory, launch.shared
        )
    if launch.size and not 0 <= launch.rank < launch.size <= RANKS_MAX:
        raise NodelistError(
            f"Rank {launch.rank} of {launch.size} processes makes no sense", cause="Ranks are counted from 0"
        )
    return launch


def _explicit(given: Given, environ: Mapping[str, str]) -> Launch | None:
    if given.rank is None and given.size is None:
        return None
    if given.rank is None or given.size is None:
        raise NodelistError("--rank and --size belong together", hint="give both, such as --rank 0 --size 2")
    return Launch(given.rank, given.size, job=_allocation(environ))


def _mpi(environ: Mapping[str, str]) -> Launch | None:
    for rank, size in _MPI:
        if rank in environ and size in environ:
            return Launch(_number(environ, rank), _number(environ, size), job=_allocation(environ))
    return None


def _allocation(environ: Mapping[str, str]) -> str:
    """The allocation that a process of another launcher runs in."""
    return _file_name(environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or "")


def _slurm(environ: Mapping[str, str]) -> Launch | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdigit() or int(step) >= _SPECIAL_STEPS:
        raise NodelistError(
            f"This process is alone: job {environ['SLURM_JOB_ID']} of Slurm has not started it on its nodes",
            cause="only srun starts one on each",
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
    """A process of pbsdsh, which starts one for each slot; the node file is on the first node alone."""
    if "PBS_JOBID" not in environ:
        return None
    if "PBS_NODENUM" not in environ:
        raise NodelistError(
            "PBS has not told this process which node it is on (PBS_NODENUM)",
            hint="start it with pbsdsh or mpiexec, or give --rank and --size",
        )
    rank = _number(environ, "PBS_NODENUM")
    nodes: tuple[str, ...] = ()
    path = Path(environ.get("PBS_NODEFILE", ""))
    try:
        nodes = tuple(node.name for node in parse_nodefile(read(path), path))
    except (OSError, UnicodeDecodeError):
        if rank == 0:
            raise NodelistError(
                "The node file of PBS cannot be read (PBS_NODEFILE)",
                hint="start it with pbsdsh or mpiexec, or give --rank and --size",
            ) from None
    if rank == 0 and len(nodes) > 1 and environ.get("PBS_TASKNUM") == "1":
        raise NodelistError(
            f"This process is alone: job {environ['PBS_JOBID']} of PBS has not started it on its nodes",
            cause="only pbsdsh starts one on each",
            hint="start it with pbsdsh: pbsdsh -- fleet agent task.py",
        )
    directory = environ.get("PBS_O_WORKDIR", "")
    return Launch(rank, len(nodes), nodes, _file_name(environ["PBS_JOBID"]), directory, shared=True)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NodelistError(f"{name} is {text[:60]!r}, and ought to be a number")
    return int(text)


def _file_name(text: str) -> str:
    """`text` with nothing in it that a file's name should not have; arrays of PBS are called ``12[3].server``."""
    return _FORBIDDEN.sub("-", text).strip("-.")[:80]
