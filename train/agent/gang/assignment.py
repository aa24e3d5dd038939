"""Which slot plays which role: a lost one's is taken over by a spare, or the gang goes on smaller. Pure."""

from typing import Collection, List, Optional, Sequence, Tuple

from train.agent.gang.states import Part
from train.agent.protocol.cluster import TASK_TYPES, parse_task
from train.agent.protocol.records import Member

_TRAINING = ("chief", "worker")
# Whom nothing else can do without comes first when roles are vacant.
_URGENCY = ("chief", "ps", "worker", "evaluator")


def role_rank(role: str) -> Tuple[int, int]:
    """Sorts roles by type as TensorFlow lists them, then by index."""
    kind, index = parse_task(role)
    return TASK_TYPES.index(kind), index


def first_cast(members: Sequence[Member], spares: Collection[str], assigned: Sequence[str] = ()) -> List[Part]:
    """Who plays what at first, in the order of the roles.

    Args:
        members: All slots.
        spares: Those without a role.
        assigned: The role of each member, empty for a spare; none at all: each plays the role of its own name.
    """
    if assigned:
        parts = [Part(one.task, assigned[at]) for at, one in enumerate(members) if assigned[at]]
    else:
        parts = [Part(one.task, one.task) for one in members]
    return sorted((part for part in parts if part.slot not in spares), key=lambda part: role_rank(part.role))


def recast(
    roles: Sequence[str], before: Sequence[Part], available: Sequence[str], fewest: Optional[int]
) -> Optional[List[Part]]:
    """Who plays what in the next attempt; None where too few are left.

    Whoever is still there keeps his role, and others who are there take over the vacant ones. Where they do not
    suffice, the evaluator's role and the last workers' are given up, for the chief's and those of parameter servers
    first, and the workers that stay are numbered without a gap.

    Args:
        roles: All roles of the job, in their order.
        before: Who played what before.
        available: Slots that are there, in their order.
        fewest: As many workers must be left; None: all roles must be taken.
    """
    played = {part.role: part.slot for part in before if part.slot in available}
    free = [slot for slot in available if slot not in played.values()]
    vacant = sorted((role for role in roles if role not in played), key=_urgency)
    played.update({role: free[index] for index, role in enumerate(vacant[: len(free)])})
    left_open = vacant[len(free) :]
    if left_open:
        if fewest is None:
            return None
        for role in left_open:
            if _kind(role) in ("chief", "ps") and not _hand_over(role, played):
                return None
        if not _suffices(roles, played, fewest):
            return None
        played = _renumbered(roles, played)
    return [Part(played[role], role) for role in roles if role in played]


def _kind(role: str) -> str:
    return parse_task(role)[0]


def _urgency(role: str) -> Tuple[int, int]:
    kind, index = parse_task(role)
    return _URGENCY.index(kind), index


def _hand_over(role: str, played: "dict[str, str]") -> bool:
    """Let the slot of the least urgent role play this one; False where nobody can be spared."""
    given_up = [other for other in played if _kind(other) in ("worker", "evaluator")]
    if not given_up:
        return False
    played[role] = played.pop(max(given_up, key=_urgency))
    return True


def _suffices(roles: Sequence[str], played: "dict[str, str]", fewest: int) -> bool:
    wanted = sum(_kind(role) == "worker" for role in roles)
    left = sum(_kind(role) == "worker" for role in played)
    return bool(trainers(list(played))) and left >= min(wanted, max(1, fewest))


def _renumbered(roles: Sequence[str], played: "dict[str, str]") -> "dict[str, str]":
    workers = [role for role in roles if _kind(role) == "worker"]
    there = [played[role] for role in workers if role in played]
    others = {role: slot for role, slot in played.items() if role not in workers}
    return {**others, **{workers[index]: slot for index, slot in enumerate(there)}}


def trainers(roles: Sequence[str]) -> List[str]:
    """The roles that train: on their success that of a job depends, and only their standstill is one."""
    return [role for role in roles if _kind(role) in _TRAINING]


def is_evaluator(role: str) -> bool:
    """Whether a role is beside the cluster: it reads checkpoints, and nobody waits for it."""
    return _kind(role) == "evaluator"


def is_coordinated(roles: Sequence[str]) -> bool:
    """Whether a chief sends the others their work: ParameterServerStrategy, where no other task ends by itself."""
    kinds = {_kind(role) for role in roles}
    return {"chief", "ps"} <= kinds
