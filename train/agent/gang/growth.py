"""Decide when a running job takes in new hosts: at its first complete checkpoint after they joined. Pure.

A slot that may join is named when the job is committed, so that the members of a gang never change: until its host
joins, it is like a slot whose host was lost.
"""

from __future__ import annotations

import itertools
from typing import FrozenSet, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.checkpoints.snapshot import Snapshot, newer
from train.agent.gang import readiness
from train.agent.gang.readiness import ReadinessFacts
from train.agent.protocol.records import Member, Reason, ReasonKind
from train.agent.protocol.wording import join_names


class Growth(NamedTuple):
    """The new hosts of a job, as its leader knows them."""

    candidates: Tuple[str, ...] = ()  # slots that join in the next attempt
    since: Optional[Snapshot] = None  # newest checkpoint when the first of them came
    trial: FrozenSet[str] = frozenset()  # slots that joined in this attempt, until user code runs in it
    rejected: FrozenSet[str] = frozenset()  # slots that do not fit


def choose_candidates(free: Sequence[str], *, workers: int, max_workers: int, spares: int) -> Tuple[str, ...]:
    """Return the slots that join in the next attempt.

    Args:
        free: Slots that can take part and have no task, in order.
        workers: Number of workers in the current attempt.
        max_workers: Maximum number of workers; 0: the job takes in no hosts.
        spares: Number of slots to keep as spares.
    """
    return tuple(free[: max(0, min(max_workers - workers, len(free) - spares))])


def update(growth: Growth, candidates: Tuple[str, ...], snapshot: Optional[Snapshot]) -> Growth:
    """Return the growth with the present candidates, given the newest complete checkpoint."""
    if candidates and not growth.candidates:
        growth = growth._replace(since=snapshot)
    return growth._replace(candidates=candidates)


def is_due(growth: Growth, snapshot: Optional[Snapshot], attempt: int) -> bool:
    """Return True if there are candidates, and `attempt` has completed a checkpoint since the first of them came."""
    fresh = snapshot is not None and snapshot.attempt == attempt and newer(snapshot, growth.since)
    return bool(growth.candidates) and fresh


def misfits(members: Sequence[Member], joining: Member, facts: Mapping[str, ReadinessFacts]) -> Tuple[str, ...]:
    """Return why a slot cannot take part, as far as this is known before its port is probed.

    Args:
        members: Members of the current attempt.
        joining: The slot, with the task that it would get.
        facts: Facts of all of them, by task.
    """
    everyone = [*members, joining]
    tasks = [member.task for member in everyone]
    reachable = dict.fromkeys(itertools.permutations(tasks, 2), "")
    return readiness.verdict(everyone, facts, reachable).problems


def describe_joining(names: Sequence[str], workers: int) -> Reason:
    """Return why the attempt ends: hosts join at a checkpoint. `workers` is the number of workers after that."""
    verb = "joins" if len(names) == 1 else "join"
    return Reason(f"{join_names(names)} {verb}, which makes {workers} workers", ReasonKind.GROWTH)


def describe_rejection(reason: Reason, names: Sequence[str]) -> Reason:
    """Return why an attempt with new hosts ends before user code runs in it, given what failed."""
    return Reason(f"{reason.text}; the job continues without {join_names(names)}", ReasonKind.GROWTH)
