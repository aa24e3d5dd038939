"""Assign tasks to slots: a spare takes over a lost task, or the gang continues with fewer workers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Sequence, Tuple

from train.agent.protocol.cluster import by_rank, parse_task, task_rank
from train.agent.protocol.records import Member

if TYPE_CHECKING:
    from typing import TypeAlias

Assignments: TypeAlias = "Dict[str, str]"
"""Maps each task to the slot that it runs in, in the order of the tasks."""

TRAINING = ("chief", "worker")
# Vacant tasks are filled in this order: the most essential first.
_URGENCY = ("chief", "ps", "worker", "evaluator")


def initial_assignments(members: Sequence[Member]) -> Assignments:
    """Return the assignments of the first attempt.

    Args:
        members: All slots; spares have no task.
    """
    return {member.task: member.slot for member in by_rank([member for member in members if member.task])}


def reassign(
    tasks: Sequence[str], before: Assignments, available: Sequence[str], fewest: Optional[int]
) -> Optional[Assignments]:
    """Return the assignments of the next attempt, or None if too few slots are available.

    Available slots keep their tasks, and free slots take the vacant ones. If there are not enough, the evaluator and
    then the last workers are given up to fill the chief and the parameter servers, and the remaining workers are
    renumbered without a gap.

    Args:
        tasks: All tasks of the job, in order.
        before: Assignments of the last attempt.
        available: Slots that can take part, in order.
        fewest: Minimum number of workers; None means that all tasks must be filled.
    """
    slots_by_task = {task: slot for task, slot in before.items() if slot in available and task in tasks}
    free = [slot for slot in available if slot not in slots_by_task.values()]
    vacant = sorted((task for task in tasks if task not in slots_by_task), key=_urgency)
    slots_by_task.update({task: free[index] for index, task in enumerate(vacant[: len(free)])})
    unfilled = vacant[len(free) :]
    if unfilled:
        if fewest is None:
            return None
        for task in unfilled:
            if _task_type(task) in ("chief", "ps") and not _reassign_slot(task, slots_by_task):
                return None
        if not _has_enough_workers(tasks, slots_by_task, fewest):
            return None
        slots_by_task = _renumber(tasks, slots_by_task)
    return {task: slots_by_task[task] for task in tasks if task in slots_by_task}


def count_workers(tasks: Iterable[str]) -> int:
    """Return the number of workers among tasks."""
    return sum(_task_type(task) == "worker" for task in tasks)


def with_workers(tasks: Sequence[str], workers: int) -> List[str]:
    """Return `tasks` with further workers, up to this number of workers."""
    added = [f"worker-{index}" for index in range(count_workers(tasks), workers)]
    return sorted([*tasks, *added], key=task_rank)


def _task_type(task: str) -> str:
    return parse_task(task)[0]


def _urgency(task: str) -> Tuple[int, int]:
    task_type, index = parse_task(task)
    return _URGENCY.index(task_type), index


def _reassign_slot(task: str, slots_by_task: Assignments) -> bool:
    """Give the slot of the least urgent task to `task`. Return False if no task can be given up."""
    expendable = [other for other in slots_by_task if _task_type(other) in ("worker", "evaluator")]
    if not expendable:
        return False
    slots_by_task[task] = slots_by_task.pop(max(expendable, key=_urgency))
    return True


def _has_enough_workers(tasks: Sequence[str], slots_by_task: Assignments, fewest: int) -> bool:
    left = count_workers(slots_by_task)
    return bool(trainers(list(slots_by_task))) and left >= min(count_workers(tasks), max(1, fewest))


def _renumber(tasks: Sequence[str], slots_by_task: Assignments) -> Assignments:
    workers = [task for task in tasks if _task_type(task) == "worker"]
    remaining = [slots_by_task[task] for task in workers if task in slots_by_task]
    others = {task: slot for task, slot in slots_by_task.items() if task not in workers}
    return {**others, **{workers[index]: slot for index, slot in enumerate(remaining)}}


def trainers(tasks: Sequence[str]) -> List[str]:
    """Return the tasks that train. Only they decide the success of a job, and only they can hang."""
    return [task for task in tasks if _task_type(task) in TRAINING]


def is_evaluator(task: str) -> bool:
    """Return True if a task is outside the cluster: it reads checkpoints, and no task waits for it."""
    return _task_type(task) == "evaluator"


def is_coordinated(tasks: Sequence[str]) -> bool:
    """Return True if a chief sends the others their work (ParameterServerStrategy): only the chief ends by itself."""
    kinds = {_task_type(task) for task in tasks}
    return {"chief", "ps"} <= kinds
