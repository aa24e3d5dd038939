"""Assign roles to slots: a spare takes over a lost role, or the gang continues with fewer workers. Pure."""

from typing import Collection, List, Optional, Sequence, Tuple

from train.agent.gang.states import Assignment
from train.agent.protocol.cluster import TASK_TYPES, parse_task
from train.agent.protocol.records import Member

_TRAINING = ("chief", "worker")
# Vacant roles are filled in this order: the most essential first.
_URGENCY = ("chief", "ps", "worker", "evaluator")


def role_rank(role: str) -> Tuple[int, int]:
    """Return a sort key for roles: by type in TensorFlow's order, then by index."""
    task_type, index = parse_task(role)
    return TASK_TYPES.index(task_type), index


def initial_assignments(
    members: Sequence[Member], spares: Collection[str], assigned: Sequence[str] = ()
) -> List[Assignment]:
    """Return the assignments of the first attempt, in the order of the roles.

    Args:
        members: All slots.
        spares: Slots without a role.
        assigned: Role of each member, empty for a spare. If there are none, the role is the member's name.
    """
    if assigned:
        assignments = [
            Assignment(member.task, assigned[index]) for index, member in enumerate(members) if assigned[index]
        ]
    else:
        assignments = [Assignment(member.task, member.task) for member in members]
    return sorted(
        (assignment for assignment in assignments if assignment.slot not in spares),
        key=lambda assignment: role_rank(assignment.role),
    )


def reassign(
    roles: Sequence[str], before: Sequence[Assignment], available: Sequence[str], fewest: Optional[int]
) -> Optional[List[Assignment]]:
    """Return the assignments of the next attempt, or None if too few slots are available.

    Available slots keep their roles, and free slots take the vacant ones. If there are not enough, the evaluator and
    then the last workers are given up to fill the chief and the parameter servers, and the remaining workers are
    renumbered without a gap.

    Args:
        roles: All roles of the job, in order.
        before: Assignments of the last attempt.
        available: Slots that can take part, in order.
        fewest: Minimum number of workers; None means that all roles must be filled.
    """
    slots_by_role = {assignment.role: assignment.slot for assignment in before if assignment.slot in available}
    free = [slot for slot in available if slot not in slots_by_role.values()]
    vacant = sorted((role for role in roles if role not in slots_by_role), key=_urgency)
    slots_by_role.update({role: free[index] for index, role in enumerate(vacant[: len(free)])})
    unfilled = vacant[len(free) :]
    if unfilled:
        if fewest is None:
            return None
        for role in unfilled:
            if _task_type(role) in ("chief", "ps") and not _reassign_slot(role, slots_by_role):
                return None
        if not _has_enough_workers(roles, slots_by_role, fewest):
            return None
        slots_by_role = _renumber(roles, slots_by_role)
    return [Assignment(slots_by_role[role], role) for role in roles if role in slots_by_role]


def _task_type(role: str) -> str:
    return parse_task(role)[0]


def _urgency(role: str) -> Tuple[int, int]:
    task_type, index = parse_task(role)
    return _URGENCY.index(task_type), index


def _reassign_slot(role: str, slots_by_role: "dict[str, str]") -> bool:
    """Give the slot of the least urgent role to `role`. Return False if no role can be given up."""
    expendable = [other for other in slots_by_role if _task_type(other) in ("worker", "evaluator")]
    if not expendable:
        return False
    slots_by_role[role] = slots_by_role.pop(max(expendable, key=_urgency))
    return True


def _has_enough_workers(roles: Sequence[str], slots_by_role: "dict[str, str]", fewest: int) -> bool:
    wanted = sum(_task_type(role) == "worker" for role in roles)
    left = sum(_task_type(role) == "worker" for role in slots_by_role)
    return bool(trainers(list(slots_by_role))) and left >= min(wanted, max(1, fewest))


def _renumber(roles: Sequence[str], slots_by_role: "dict[str, str]") -> "dict[str, str]":
    workers = [role for role in roles if _task_type(role) == "worker"]
    remaining = [slots_by_role[role] for role in workers if role in slots_by_role]
    others = {role: slot for role, slot in slots_by_role.items() if role not in workers}
    return {**others, **{workers[index]: slot for index, slot in enumerate(remaining)}}


def trainers(roles: Sequence[str]) -> List[str]:
    """Return the roles that train. Only they decide the success of a job, and only they can hang."""
    return [role for role in roles if _task_type(role) in _TRAINING]


def is_evaluator(role: str) -> bool:
    """Return True if a role is outside the cluster: it reads checkpoints, and no task waits for it."""
    return _task_type(role) == "evaluator"


def is_coordinated(roles: Sequence[str]) -> bool:
    """Return True if a chief sends the others their work (ParameterServerStrategy): only the chief ends by itself."""
    kinds = {_task_type(role) for role in roles}
    return {"chief", "ps"} <= kinds
