"""The assignment of tasks to slots."""

from __future__ import annotations

import pytest

from fleet.errors import UsageError
from fleet.fleets.repair import gpu_share, moved_share
from fleet.jobs.tasks import TaskTypes, check_task_types
from fleet.steps import Again, Change
from tests.next_steps import repetition
from train.agent.protocol.records import Gpu

ALL = TaskTypes(chief=True, ps=2, evaluator=True)


@pytest.mark.parametrize(
    ("types", "hosts", "says", "change"),
    [
        (TaskTypes(ps=2), 4, "--ps 2 needs --chief", {"--chief": True}),
        (ALL, 3, "--chief --ps 2 --evaluator with a worker need 5 tasks, but there is room for 3 on 3 hosts",
         {"--tasks-per-host": "2"}),
        (TaskTypes(evaluator=True), 1, "--evaluator with a worker needs 2 tasks, but there is room for 1 on 1 host",
         {"--tasks-per-host": "2"}),
        (TaskTypes(chief=True, ps=4, tasks_per_host=2), 2, "room for 4 on 2 hosts with 2 tasks each",
         {"--tasks-per-host": "3"}),
    ],
)  # fmt: skip
def test_task_types_that_do_not_fit_are_rejected_with_a_next_step(
    types: TaskTypes, hosts: int, says: str, change: Change
) -> None:
    with pytest.raises(UsageError) as raised:
        check_task_types(types, hosts=hosts, spares=0)
    assert says in raised.value.message
    assert repetition(raised.value) == Again(change)


# --- several tasks a host -------------------------------------------------------------------------------------------

GPUS = [Gpu(number, "Tesla T4", 15360, "535") for number in range(4)]


def test_gpus_are_split_evenly_or_not_at_all() -> None:
    shares = [gpu_share(GPUS, slot, 2, ())["CUDA_VISIBLE_DEVICES"] for slot in range(2)]
    assert shares == ["0,1", "2,3"]
    assert gpu_share(GPUS, 0, 1, ()) == gpu_share([], 0, 2, ()) == {}
    assert gpu_share(GPUS, 0, 3, ["CUDA_VISIBLE_DEVICES"]) == {}
    with pytest.raises(UsageError, match="4 GPUs cannot be split evenly among 3 tasks"):
        gpu_share(GPUS, 0, 3, ())


def test_a_moved_task_gets_the_gpus_of_its_slot_unless_the_user_set_them() -> None:
    environment = {"A": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert moved_share(environment, GPUS, ("worker-0", "worker-3"), 2) == {"A": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    users = {"CUDA_VISIBLE_DEVICES": "3"}
    assert moved_share(users, GPUS, ("worker-0", "worker-3"), 2) == users
    assert moved_share({"A": "1"}, GPUS, ("worker-0", "worker-1"), 1) == {"A": "1"}


# --- tasks of now -----------------------------------------------------------------------------------------------
