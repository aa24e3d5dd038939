"""Which seat plays which role: a lost one's is taken over by a spare, or the gang goes on smaller. Pure."""

from typing import Collection, List, Optional, Sequence

from train.agent.cluster import parse_task
from train.agent.environment import by_rank
from train.agent.orders import Part
from train.agent.records import Member

_TRAINING = ("chief", "worker")


def first_cast(members: Sequence[Member], spares: Collection[str]) -> List[Part]:
    """At first each seat plays the role of its own name; spares none."""
    return [Part(member.task, member.task) for member in by_rank(members) if member.task not in spares]


def recast(
    roles: Sequence[str], before: Sequence[Part], available: Sequence[str], fewest: int
) -> Optional[List[Part]]:
    """Who plays what in the next attempt; None where too few are left.

    Whoever is still there keeps his role, and others who are there take over the vacant ones. Where they do not
    suffice, the last workers' roles are given up, and those that stay are numbered without a gap.

    Args:
        roles: All roles of the job, in their order.
        before: Who played what before.
        available: Seats that are there, in their order.
        fewest: As many of the roles that train must be taken, if not all of them.
    """
    played = {part.role: part.seat for part in before if part.seat in available}
    free = [seat for seat in available if seat not in played.values()]
    vacant = [role for role in roles if role not in played]
    played.update({role: free[index] for index, role in enumerate(vacant[: len(free)])})
    left_open = [role for role in roles if role not in played]
    if left_open:
        if any(parse_task(role)[0] != "worker" for role in left_open):
            return None
        training = [role for role in roles if parse_task(role)[0] in _TRAINING and role in played]
        if len(training) < max(1, fewest):
            return None
        played = _renumbered(roles, played)
    return [Part(played[role], role) for role in roles if role in played]


def _renumbered(roles: Sequence[str], played: "dict[str, str]") -> "dict[str, str]":
    workers = [role for role in roles if parse_task(role)[0] == "worker"]
    there = [played[role] for role in workers if role in played]
    others = {role: seat for role, seat in played.items() if role not in workers}
    return {**others, **{workers[index]: seat for index, seat in enumerate(there)}}


def is_needed(role: str) -> bool:
    """Whether the success of a job depends on the role: parameter servers and evaluators never end by themselves."""
    return parse_task(role)[0] in _TRAINING
