"""Which process of a parallel start this is: what Slurm, PBS and mpiexec say, and what makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.allocation.ranks import Given, Launch, find_launch
from provision.inventory.nodelist import NodelistError
from provision.provider import ErrorKind

# As srun of Slurm 22.05 sets it for `srun -N2 --ntasks-per-node=1`.
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


def test_srun_says_it_all_and_the_step_goes_before_the_job() -> None:
    launch = find(SRUN)
    assert launch == Launch(1, 2, ("node0", "node1"), "12.0")
    assert launch.node(0) == "node0"
    assert launch.node(1) == "node1"


def test_with_several_processes_a_node_it_is_not_certain_who_is_where() -> None:
    launch = find({**SRUN, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"})
    assert (launch.rank, launch.size) == (3, 4)
    assert launch.node(0) == ""


@pytest.mark.parametrize("step", [None, "4294967290", "4294967291", ""])
def test_a_batch_script_of_slurm_without_srun_is_told_so(step: str | None) -> None:
    environ = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    with pytest.raises(NodelistError, match="alone: job 12 of Slurm") as refusal:
        find({**environ, "SLURM_STEP_ID": step} if step is not None else environ)
    assert refusal.value.hint == "start it with srun: srun fleet agent task.py"


def test_pbsdsh_gives_the_node_file_to_all() -> None:
    launch = find(PBSDSH, "n1\nn1\nn2\nn2\n")
    assert launch == Launch(1, 2, ("n1", "n2"), "12-3-.server", "/home/me/work", shared=True)


def test_pbsdsh_gives_the_node_file_to_the_first_node_alone() -> None:
    assert find(PBSDSH) == Launch(1, 0, (), "12-3-.server", "/home/me/work", shared=True)
    with pytest.raises(NodelistError, match="node file of PBS cannot be read"):
        find({**PBSDSH, "PBS_NODENUM": "0"})


def test_a_batch_script_of_pbs_without_pbsdsh_is_told_so() -> None:
    script = {**PBSDSH, "PBS_NODENUM": "0", "PBS_TASKNUM": "1"}
    with pytest.raises(NodelistError, match=r"alone: job 12\[3\]\.server of PBS") as refusal:
        find(script, "n1\nn2\n")
    assert refusal.value.hint == "start it with pbsdsh: pbsdsh -- fleet agent task.py"
    assert find(script, "n1\nn1\n").size == 1


def test_a_batch_system_that_numbers_no_nodes_is_told_so() -> None:
    with pytest.raises(NodelistError, match="PBS_NODENUM"):
        find({"PBS_JOBID": "12"})


def test_mpiexec_goes_before_the_allocation_that_it_runs_in() -> None:
    environ = {**SRUN, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert find(environ) == Launch(3, 4, (), "12")
    assert find({**PBSDSH, "PMI_RANK": "0", "PMI_SIZE": "2"}) == Launch(0, 2, (), "12-3-.server")


def test_what_the_user_says_goes_before_everything() -> None:
    given = Given(0, 3, "a[1-2],b")
    assert find(SRUN, given=given) == Launch(0, 3, ("a1", "a2", "b"), "12")
    assert find({}, given=given) == Launch(0, 3, ("a1", "a2", "b"), "")


@pytest.mark.parametrize(
    ("environ", "given", "why"),
    [
        ({}, Given(), "does not know which of how many"),
        ({}, Given(rank=1), "belong together"),
        ({}, Given(size=2), "belong together"),
        ({}, Given(2, 2), "Rank 2 of 2"),
        ({}, Given(-1, 2), "Rank -1 of 2"),
        ({}, Given(0, 10_001), "makes no sense"),
        ({}, Given(0, 1, "a[1-"), "cannot be read"),
        ({**SRUN, "SLURM_PROCID": "one"}, Given(), "SLURM_PROCID is 'one'"),
        ({**SRUN, "SLURM_PROCID": "2"}, Given(), "Rank 2 of 2"),
        ({**PBSDSH, "PBS_NODENUM": "²"}, Given(), "PBS_NODENUM is"),
    ],
)
def test_what_makes_no_sense_is_one_message(environ: dict[str, str], given: Given, why: str) -> None:
    with pytest.raises(NodelistError, match=why) as refusal:
        find(environ, given=given)
    assert refusal.value.kind is ErrorKind.USAGE
    assert "\n" not in refusal.value.message
