"""The allocation of a batch system as an inventory: its nodes are the hosts, in their order.

Instead of a file path, its name is ``slurm:12`` or ``pbs:12.server``, after its job, so that fleets of different
allocations are distinct.

Slurm's expressions, ``gpu[01-03,7],login1``, are read as by ``scontrol show hostnames``: the order is that of the
expression, numbers padded with zeros keep their width, and of several brackets the last one varies fastest, the
others from the left. Words after a bracket and steps, ``n[1-9/2]-ib``, are written by other cluster tools. The node
file of PBS has a line with the name of the node for each task that PBS would start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

from provision.inventory.files import InventoryError
from provision.inventory.ini import read_plain
from provision.inventory.names import split_ranges
from provision.inventory.reader import Inventory

NODES_MAX = 100_000
"""More nodes than this in one list are taken for a mistake."""

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_RANGE = re.compile(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*(?:/\s*(\d{1,18})\s*)?)?", re.ASCII)
_PART = re.compile(r"(?:\[[^\]]*\]|[^,])*,?")


class _Batch(NamedTuple):
    title: str
    variable: str
    hint: str


_BATCHES = {
    "slurm": _Batch(
        "Slurm", "SLURM_JOB_ID", "run salloc -N 2, then fleet up --provider slurm, or both in a script for sbatch"
    ),
    "pbs": _Batch(
        "PBS", "PBS_JOBID", "run qsub -I -l select=2, then fleet up --provider pbs, or both in a script for qsub"
    ),
}


def current_allocation(batch: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the allocation of a batch system in which this program runs, ``slurm:12``; empty if there is none."""
    job = environ.get(_BATCHES[batch].variable, "")
    return f"{batch}:{job}" if job else ""


def here(batch: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the allocation of a batch system in which this program runs, ``slurm:12``.

    Raises:
        InventoryError: there is none.
    """
    if not (allocation := current_allocation(batch, environ)):
        title, variable, hint = _BATCHES[batch]
        raise InventoryError(f"not inside a {title} allocation", cause=f"{variable} is not set", hint=hint)
    return allocation


def is_allocation(inventory: str) -> bool:
    """Return True if an inventory is the allocation of a batch system; paths of files are absolute."""
    return inventory.partition(":")[0] in _BATCHES


def read_allocation(inventory: str, environ: Mapping[str, str] = os.environ) -> Inventory:
    """Return the nodes of an allocation, each counted once.

    Args:
        inventory: From `here`.
        environ: Environment of this program, which must run in the allocation.

    Raises:
        InventoryError: it does not, or the variables of the batch system cannot be read.
    """
    batch, _, job = inventory.partition(":")
    if (current := here(batch, environ)) != inventory:
        raise InventoryError(
            f"not inside the {_BATCHES[batch].title} allocation {job}",
            cause=f"this is allocation {current.partition(':')[2]}",
            hint="delete the fleet and create it again here, or use another name: --fleet NAME",
            next_steps=[("fleet", "down")],
        )
    if batch == "slurm":
        path, names = Path("/$SLURM_JOB_NODELIST"), expand_nodelist(environ.get("SLURM_JOB_NODELIST", ""))
    else:
        path = Path(environ.get("PBS_NODEFILE", ""))
        try:
            names = parse_nodefile(path.read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise InventoryError(
                f"the node file of PBS cannot be read: {path}" if path.name else "PBS_NODEFILE is not set",
                cause=error.strerror or "" if isinstance(error, OSError) else "it is not text",
                hint="run fleet on the first node of the job, where PBS starts its script",
            ) from error
    return Inventory(path, read_plain("\n".join(names), path))


def expand_nodelist(expression: str) -> tuple[str, ...]:
    """Return the names in an expression of SLURM_JOB_NODELIST, in its order; a repeated name counts once.

    Args:
        expression: ``gpu[01-03,7],login1``; brackets may follow each other, with words between and after them.

    Raises:
        InventoryError: it is malformed, or names no node.
    """
    if not expression.strip():
        raise InventoryError(
            "the node list is empty",
            cause="Slurm sets SLURM_JOB_NODELIST in the job",
            hint="run fleet inside an allocation of salloc or sbatch",
        )
    names: dict[str, None] = {}
    for part in _PART.findall(f"{expression.strip()},")[:-1]:
        try:
            names |= dict.fromkeys(_expand(part[:-1].strip()))
            if len(names) > NODES_MAX:
                raise ValueError(f"more than {NODES_MAX} nodes")
        except ValueError as error:
            raise InventoryError(f"invalid node list {expression!r:.60}: {error}") from None
    return tuple(names)


def parse_nodefile(text: str, path: Path) -> tuple[str, ...]:
    """Return the names in the file PBS_NODEFILE, in the order of their first lines.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it names no node, or a line is not a node name.
    """
    names: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name = line.strip()
        if name and not _NAME.fullmatch(name):
            hint = "PBS_NODEFILE must be the file that PBS wrote"
            raise InventoryError(f"{name!r} is not a valid node name", f"{path}:{number}", hint=hint)
        names |= {name: None} if name else {}
    if not names:
        raise InventoryError(
            f"{path} does not list a node",
            cause="PBS writes it when the job starts",
            hint="run fleet inside a job of PBS",
        )
    return tuple(names)


def _expand(word: str) -> list[str]:
    """Return the names of a part between commas.

    Raises:
        ValueError: it is malformed; the text is a clause for the user.
    """
    if not word:
        raise ValueError("a name is missing before or after a comma")
    # Of the product, the last range varies fastest, the others from the left.
    *before, last, end = [[""], [""], *split_ranges(word, _numbers, NODES_MAX)]
    names = ["".join((*chosen[-3::-1], *chosen[-2:])) for chosen in product(*reversed(before), last, end)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.60} is not a valid node name")
    return names


def _numbers(bracket: str, limit: int) -> list[str]:
    """Return the numbers inside a bracket, at most `limit`."""
    numbers: list[str] = []
    for part in bracket.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r:.60} in {f'[{bracket}]'!r:.60} is not a range such as 1-9, 01-10, or 1-9/2")
        first, last, step = match[1], match[2] or match[1], int(match[3] or "1")
        if step == 0 or int(last) < int(first):
            raise ValueError(f"the range {part.strip()} in {f'[{bracket}]'!r:.60} is empty")
        values = range(int(first), int(last) + 1, step)
        if len(numbers) + len(values) > limit:
            raise ValueError(f"more than {NODES_MAX} nodes")
        width = len(first) if first.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in values]
    return numbers
