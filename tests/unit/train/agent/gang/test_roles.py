"""The assignment of tasks to slots after a host is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train.agent.gang.assignment import initial_assignments, is_coordinated, is_evaluator, reassign, trainers
from train.agent.protocol.records import Member

TASKS = ["worker-0", "worker-1", "worker-2"]
CAST = {task: task for task in TASKS}


def test_in_the_first_attempt_spares_have_no_task() -> None:
    members = [Member(f"worker-{n}", f"worker-{n}" if n < 2 else "", "10.0.0.1", 2222, 4000) for n in (2, 0, 1)]
    assert initial_assignments(members) == {task: task for task in TASKS[:2]}


def test_a_spare_takes_over_the_vacant_task() -> None:
    assert reassign(TASKS, CAST, ["worker-0", "worker-2", "worker-3"], 3) == {
        "worker-0": "worker-0",
        "worker-1": "worker-3",
        "worker-2": "worker-2",
    }


def test_fewer_are_numbered_without_a_gap_and_grow_again_when_one_is_back() -> None:
    smaller = reassign(TASKS, CAST, ["worker-1", "worker-2"], 2)
    assert smaller == {"worker-0": "worker-1", "worker-1": "worker-2"}
    assert reassign(TASKS, smaller, TASKS, 3) == {
        "worker-0": "worker-1",
        "worker-1": "worker-2",
        "worker-2": "worker-0",
    }


def test_too_few_or_without_a_task_that_cannot_be_given_up_there_is_no_cast() -> None:
    assert reassign(TASKS, CAST, ["worker-0", "worker-2"], 3) is None
    assert reassign(TASKS, CAST, ["worker-0", "worker-2"], None) is None
    tasks = ["chief-0", "worker-0", "ps-0"]
    assignments = {task: task for task in tasks}
    assert reassign(tasks, assignments, ["chief-0", "worker-0"], 1) is None
    assert reassign(tasks, assignments, ["chief-0", "ps-0"], 1) is None


ASSIGNED = ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0", ""]
MEMBERS = [Member(f"worker-{n}", task, "10.0.0.1", 2222 + n, 4000) for n, task in enumerate(ASSIGNED)]
MIXED = {member.task: member.slot for member in MEMBERS if member.task}
MIXED_TASKS = list(MIXED)
SLOTS = [member.slot for member in MEMBERS]


def without(*slots: str) -> list[str]:
    return [slot for slot in SLOTS if slot not in slots]


def test_tasks_that_were_assigned_are_cast_in_the_order_of_their_types() -> None:
    assert list(initial_assignments(MEMBERS).items()) == list(MIXED.items())
    backwards = initial_assignments(
        [member._replace(task=task) for member, task in zip(MEMBERS, ["ps-0", "worker-0", "chief-0"], strict=False)]
    )
    assert list(backwards) == ["chief-0", "worker-0", "ps-0"]
    assert backwards == {
        "chief-0": "worker-2",
        "worker-0": "worker-1",
        "ps-0": "worker-0",
    }


def test_a_spare_takes_the_most_urgent_task() -> None:
    taken = reassign(MIXED_TASKS, MIXED, without("worker-3"), None)
    assert taken is not None
    assert taken["ps-0"] == "worker-5"
    both = reassign(MIXED_TASKS, MIXED, without("worker-2", "worker-3"), 1)
    assert both is not None
    assert list(both) == ["chief-0", "worker-0", "ps-0", "evaluator-0"]
    assert both["ps-0"] == "worker-5"


def test_for_a_lost_parameter_server_the_evaluator_is_given_up_first_then_the_last_worker() -> None:
    assignments = reassign(MIXED_TASKS, MIXED, without("worker-3", "worker-5"), 2)
    assert assignments == {
        "chief-0": "worker-0", "worker-0": "worker-1", "worker-1": "worker-2",
        "ps-0": "worker-4",
    }  # fmt: skip
    two = reassign(MIXED_TASKS, MIXED, without("worker-0", "worker-3", "worker-5"), 1)
    assert two == {
        "chief-0": "worker-4",
        "worker-0": "worker-1",
        "ps-0": "worker-2",
    }
    assert reassign(MIXED_TASKS, MIXED, without("worker-0", "worker-3", "worker-5"), 2) is None


def test_without_its_evaluator_a_job_goes_on_where_not_all_tasks_must_be_taken() -> None:
    left = without("worker-4", "worker-5")
    assert reassign(MIXED_TASKS, MIXED, left, None) is None
    assert reassign(MIXED_TASKS, MIXED, left, 2) == {task: MIXED[task] for task in MIXED_TASKS[:4]}


def test_evaluators_and_parameter_servers_do_not_train() -> None:
    tasks = ["chief-0", "worker-3", "ps-0", "evaluator-0"]
    assert trainers(tasks) == ["chief-0", "worker-3"]
    assert [task for task in tasks if is_evaluator(task)] == ["evaluator-0"]
    assert is_coordinated(tasks)
    assert not is_coordinated(["worker-0", "ps-0"])
    assert not is_coordinated(["chief-0", "worker-0", "evaluator-0"])


@given(st.sets(st.sampled_from(SLOTS)), st.none() | st.integers(0, 3))
def test_whoever_is_left_a_mixed_cast_is_whole_but_for_what_may_be_given_up(
    available: set[str], fewest: int | None
) -> None:
    assignments = reassign(MIXED_TASKS, MIXED, sorted(available), fewest)
    if assignments is None:
        assert fewest is None or len(available) < 5
        return
    slots, tasks = list(assignments.values()), list(assignments)
    assert len(set(slots)) == len(slots)
    assert set(slots) <= available
    assert {"chief-0", "ps-0", "worker-0"} <= set(tasks)
    assert sum(task.startswith("worker") for task in tasks) >= min(2, max(1, 2 if fewest is None else fewest))
    assert fewest is not None or tasks == MIXED_TASKS


@given(st.sets(st.sampled_from([f"worker-{n}" for n in range(6)])), st.integers(0, 4))
def test_a_cast_is_one_slot_a_task_without_gaps(available: set[str], fewest: int) -> None:
    assignments = reassign(TASKS, CAST, sorted(available), fewest)
    if assignments is None:
        assert len(available) < max(1, fewest)
        return
    slots, tasks = list(assignments.values()), list(assignments)
    assert tasks == TASKS[: len(assignments)]
    assert len(set(slots)) == len(slots)
    assert set(slots) <= available
    assert len(assignments) >= min(len(TASKS), max(1, fewest))
