"""The rank of a process from the variables of Slurm, PBS and mpiexec, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.allocation.ranks import Given, Launch, find_launch
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


def find(environ: dict[str, str], text: str | None = None, given: Given | None = None) -> Launch:
    return find_launch(given or Given(), environ, missing if text is None else lambda _: text)


def test_srun_gives_the_launch_and_the_step_overrides_the_job() -> None:
    launch = find(SRUN)
    assert launch == Launch(1, 2, ("node0", "node1"), "12.0")
    assert launch.node(0) == "node0"
    assert launch.node(1) == "node1"


def test_with_several_processes_per_node_the_node_of_a_rank_is_unknown() -> None:
    launch = find({**SRUN, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"})
    assert (launch.rank, launch.size) == (3, 4)
    assert launch.node(0) == ""


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


def test_a_missing_pbs_node_number_is_an_error() -> None:
    with pytest.raises(InventoryError, match="PBS_NODENUM"):
        find({"PBS_JOBID": "12"})


def test_mpiexec_overrides_the_allocation_that_it_runs_in() -> None:
    environ = {**SRUN, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert find(environ) == Launch(3, 4, (), "12")
    assert find({**PBSDSH, "PMI_RANK": "0", "PMI_SIZE": "2"}) == Launch(0, 2, (), "12-3-.server")


def test_options_override_the_environment() -> None:
    given = Given(0, 3, "a[1-2],b")
    assert find(SRUN, given=given) == Launch(0, 3, ("a1", "a2", "b"), "12")
    assert find({}, given=given) == Launch(0, 3, ("a1", "a2", "b"), "")


@pytest.mark.parametrize(
    ("environ", "given", "why"),
    [
        ({}, Given(), "rank and size of this process are unknown"),
        ({}, Given(rank=1), "--rank and --size must be given together"),
        ({}, Given(size=2), "--rank and --size must be given together"),
        ({}, Given(2, 2), "rank 2 of 2 processes is invalid"),
        ({}, Given(-1, 2), "rank -1 of 2 processes is invalid"),
        ({}, Given(0, 10_001), "rank 0 of 10001 processes is invalid"),
        ({}, Given(0, 1, "a[1-"), r"invalid node list 'a\[1-': unbalanced brackets in 'a\[1-'"),
        ({**SRUN, "SLURM_PROCID": "one"}, Given(), "SLURM_PROCID is not a number: 'one'"),
        ({**SRUN, "SLURM_PROCID": "2"}, Given(), "rank 2 of 2 processes is invalid"),
        ({**PBSDSH, "PBS_NODENUM": "²"}, Given(), "PBS_NODENUM is"),
    ],
)
def test_invalid_ranks_are_errors(environ: dict[str, str], given: Given, why: str) -> None:
    with pytest.raises(InventoryError, match=why) as refusal:
        find(environ, given=given)
    assert refusal.value.kind is ErrorKind.USAGE
    assert "\n" not in refusal.value.message
