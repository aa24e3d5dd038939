"""The assignment of tasks to slots after a host is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train.agent.gang.assignment import reassign
from train.agent.protocol.records import Member

TASKS = ["worker-0", "worker-1", "worker-2"]
CAST = {task: task for task in TASKS}


def test_fewer_are_numbered_without_a_gap_and_grow_again_when_one_is_back() -> None:
    smaller = reassign(TASKS, CAST, ["worker-1", "worker-2"], 2)
    assert smaller == {"worker-0": "worker-1", "worker-1": "worker-2"}
    assert reassign(TASKS, smaller, TASKS, 3) == {
        "worker-0": "worker-1",
        "worker-1": "worker-2",
        "worker-2": "worker-0",
    }


ASSIGNED = ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0", ""]
MEMBERS = [Member(f"worker-{n}", task, "10.0.0.1", 2222 + n, 4000) for n, task in enumerate(ASSIGNED)]
MIXED = {member.task: member.slot for member in MEMBERS if member.task}
MIXED_TASKS = list(MIXED)
SLOTS = [member.slot for member in MEMBERS]


def without(*slots: str) -> list[str]:
    return [slot for slot in SLOTS if slot not in slots]


def test_a_spare_takes_the_most_urgent_task() -> None:
    taken = reassign(MIXED_TASKS, MIXED, without("worker-3"), None)
    assert taken is not None
    assert taken["ps-0"] == "worker-5"
    both = reassign(MIXED_TASKS, MIXED, without("worker-2", "worker-3"), 1)
    assert both is not None
    assert list(both) == ["chief-0", "worker-0", "ps-0", "evaluator-0"]
    assert both["ps-0"] == "worker-5"


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
