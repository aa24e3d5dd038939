"""The rank of a process from the variables of Slurm, PBS and mpiexec, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.allocation.ranks import Launch, find_launch
from provision.inventory.files import InventoryError
from provision.provider import ErrorKind

# Variables that srun of Slurm 22.05 sets for `srun -N2 --ntasks-per-node=1`.
SRUN = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node[0-1]",
    "SLURM_JOB_NODELIST": "node[0-3]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
}
PBSDSH = {
    "PBS_JOBID": "12[3].server",
    "PBS_NODENUM": "1",
    "PBS_TASKNUM": "3",
    "PBS_NODEFILE": "/var/spool/pbs/aux/12",
    "PBS_O_WORKDIR": "/home/me/work",
}


def missing(path: Path) -> str:
    raise FileNotFoundError(path)


def find(environ: dict[str, str], text: str | None = None, **given: Any) -> Launch:
    return find_launch(environ, read=missing if text is None else lambda _: text, **given)


def test_srun_gives_the_launch_and_the_step_overrides_the_job() -> None:
    launch = find(SRUN)
    assert launch == Launch(1, 2, ("node0", "node1"), "12.0")
    assert [launch.node(0), launch.node(1)] == ["node0", "node1"]
    several = find({**SRUN, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"})
    assert (several.rank, several.size, several.node(0)) == (3, 4, "")  # which node has a rank is not certain


@pytest.mark.parametrize("step", [None, "4294967290", "4294967291", ""])
def test_a_slurm_batch_script_without_srun_is_an_error(step: str | None) -> None:
    environ = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    with pytest.raises(
        InventoryError, match="job 12 of Slurm did not start this process on all its nodes"
    ) as refusal:
        find({**environ, "SLURM_STEP_ID": step} if step is not None else environ)
    assert refusal.value.hint == "start it with srun: srun fleet agent task.py"


def test_pbsdsh_gives_the_node_file_to_all() -> None:
    launch = find(PBSDSH, "n1\nn1\nn2\nn2\n")
    assert launch == Launch(1, 2, ("n1", "n2"), "12-3-.server", "/home/me/work", shared=True)


def test_pbsdsh_gives_the_node_file_to_the_first_node_alone() -> None:
    assert find(PBSDSH) == Launch(1, 0, (), "12-3-.server", "/home/me/work", shared=True)
    with pytest.raises(InventoryError, match="node file of PBS cannot be read"):
        find({**PBSDSH, "PBS_NODENUM": "0"})


def test_a_pbs_batch_script_without_pbsdsh_is_an_error() -> None:
    script = {**PBSDSH, "PBS_NODENUM": "0", "PBS_TASKNUM": "1"}
    with pytest.raises(
        InventoryError, match=r"job 12\[3\]\.server of PBS did not start this process on all its nodes"
    ) as refusal:
        find(script, "n1\nn2\n")
    assert refusal.value.hint == "start it with pbsdsh: pbsdsh -- fleet agent task.py"
    assert find(script, "n1\nn1\n").size == 1


def test_mpiexec_overrides_the_allocation_that_it_runs_in() -> None:
    environ = {**SRUN, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert find(environ) == Launch(3, 4, (), "12")
    assert find({**PBSDSH, "PMI_RANK": "0", "PMI_SIZE": "2"}) == Launch(0, 2, (), "12-3-.server")


def test_options_override_the_environment() -> None:
    given: dict[str, Any] = {"rank": 0, "size": 3, "nodes": "a[1-2],b"}
    assert find(SRUN, **given) == Launch(0, 3, ("a1", "a2", "b"), "12")
    assert find({}, **given) == Launch(0, 3, ("a1", "a2", "b"), "")


@pytest.mark.parametrize(
    ("environ", "given", "why"),
    [
        ({}, {}, "rank and size of this process are unknown"),
        ({"PBS_JOBID": "12"}, {}, "PBS_NODENUM"),
        ({}, {"rank": 1}, "--rank and --size must be given together"),
        ({}, {"size": 2}, "--rank and --size must be given together"),
        ({}, {"rank": 2, "size": 2}, "rank 2 of 2 processes is invalid"),
        ({}, {"rank": -1, "size": 2}, "rank -1 of 2 processes is invalid"),
        ({}, {"rank": 0, "size": 10_001}, "rank 0 of 10001 processes is invalid"),
        ({}, {"rank": 0, "size": 1, "nodes": "a[1-"}, r"invalid node list 'a\[1-': unbalanced brackets in 'a\[1-'"),
        ({**SRUN, "SLURM_PROCID": "one"}, {}, "SLURM_PROCID is not a number: 'one'"),
        ({**SRUN, "SLURM_PROCID": "2"}, {}, "rank 2 of 2 processes is invalid"),
        ({**PBSDSH, "PBS_NODENUM": "²"}, {}, "PBS_NODENUM is"),
    ],
)
def test_invalid_ranks_are_errors(environ: dict[str, str], given: dict[str, Any], why: str) -> None:
    with pytest.raises(InventoryError, match=why) as refusal:
        find(environ, **given)
    assert refusal.value.kind is ErrorKind.USAGE
    assert "\n" not in refusal.value.message
