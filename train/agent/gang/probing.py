"""Select the pairs of tasks whose ports are probed before user code runs. Pure.

In a small gang every task probes all others. In a large one that would cost each host CPU time in proportion to the
number of hosts, so a task probes those at distances of 1, 2, 4, ... in both directions of a ring. Every port is
then still probed from several hosts, and each neighbour of TensorFlow's ring all-reduce is among them. Tasks that
all others need are probed by all and probe all: the first one, which runs TensorFlow's coordination service, and
parameter servers.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Set, Tuple

from train.agent.protocol.cluster import parse_task
from train.agent.protocol.records import Member

ALL_PAIRS_MAX = 32
"""The largest number of tasks of which all pairs are probed."""


def probe_targets(members: Sequence[Member], slot: str) -> Tuple[Member, ...]:
    """Return the members whose ports the task in a slot probes, in the order of `members`.

    Args:
        members: All tasks of the attempt, in order.
        slot: The slot of the task that probes; without a task it probes nothing.
    """
    at = next((index for index, member in enumerate(members) if member.slot == slot), None)
    if at is None:
        return ()
    targets = _targets(len(members), _hubs(members), at)
    return tuple(member for index, member in enumerate(members) if index in targets)


def probed_tasks(members: Sequence[Member]) -> Dict[str, List[str]]:
    """Return for each task the tasks that it probes."""
    count, hubs = len(members), _hubs(members)
    return {
        member.task: [members[index].task for index in sorted(_targets(count, hubs, at))]
        for at, member in enumerate(members)
    }


def _hubs(members: Sequence[Member]) -> Set[int]:
    return {index for index, member in enumerate(members) if index == 0 or parse_task(member.task)[0] == "ps"}


def _targets(count: int, hubs: Set[int], at: int) -> Set[int]:
    if count <= ALL_PAIRS_MAX or at in hubs:
        return set(range(count)) - {at}
    distances = [1 << power for power in range((count // 2).bit_length())]
    ring = {(at + sign * distance) % count for distance in distances for sign in (1, -1)}
    return (hubs | ring) - {at}
