"""Decide when a running job takes in new hosts: at its first complete checkpoint after they joined. Pure.

A slot that may join is named when the job is committed, so that the members of a gang never change: until its host
joins, it is like a slot whose host was lost.
"""

from __future__ import annotations

import itertools
from typing import Optional, Sequence, Tuple

from train.agent.gang import readiness
from train.agent.gang.assignment import count_workers
from train.agent.gang.attempt import START_STAGES, Ending, Gang
from train.agent.protocol.records import Member, Outcome, Reason, ReasonKind
from train.agent.protocol.wording import join_names


def is_growth(end: Optional[Ending]) -> bool:
    """Return True if an attempt ends because new hosts join."""
    return end is not None and end.reason.kind is ReasonKind.GROWTH


def joining_slots(gang: Gang) -> Tuple[str, ...]:
    """Return the slots that join in the next attempt."""
    if not gang.terms.policy.max_workers:
        return ()
    busy = {*gang.assigned_slots(), *gang.growth.rejected}
    free = [slot for slot in gang.available_slots() if slot not in busy]
    return choose_candidates(gang, free, count_workers(gang.assigned_tasks()))


def fails_by_growth(gang: Gang, end: Ending) -> bool:
    """Return True if an attempt with new hosts fails before user code runs in it, unless another host was lost."""
    trial = gang.growth.trial if gang.stage in START_STAGES else frozenset()
    if not trial or end.outcome is not Outcome.FAILED or end.final:
        return False
    return not end.host_lost or end.first_failed_slot in trial


def leave_out_newcomers(gang: Gang, end: Ending) -> Tuple[Gang, Ending]:
    """Leave out the new hosts of this attempt, whose failure is not one of the job."""
    trial = gang.growth.trial
    names = join_names([gang.display_name(slot) for slot in sorted(trial)])
    reason = Reason(f"{end.summarize().text}; the job continues without {names}", ReasonKind.GROWTH)
    state = gang.growth._replace(trial=frozenset(), rejected=gang.growth.rejected | trial)
    gang = gang._replace(growth=state)
    if end.summary:
        gang = gang._replace(notices=(*gang.notices, "; ".join(end.reason.text.splitlines())))
    return gang, Ending(Outcome.FAILED, reason=reason)


def choose_candidates(gang: Gang, free: Sequence[str], workers: int) -> Tuple[str, ...]:
    """Return the slots that join `workers` workers: as many as the job may have, without those kept as spares.

    Args:
        gang: Of the job.
        free: Slots that can take part and have no task, in order.
        workers: Number of workers without them.
    """
    return tuple(free[: max(0, min(gang.terms.policy.max_workers - workers, len(free) - gang.terms.spares))])


def misfits(gang: Gang, slot: str) -> Tuple[str, ...]:
    """Return why a new slot cannot take part, as far as this is known before its port is probed."""
    facts = {name: report.facts for name, report in gang.statuses.items() if report.facts is not None}
    joining = Member(slot, f"worker-{count_workers(gang.assigned_tasks())}", gang.statuses[slot].address, 0, 0)
    members = [member for member in (*gang.members, joining) if member.slot in facts]
    by_task = {member.task: facts[member.slot] for member in members}
    reachable = dict.fromkeys(itertools.permutations(by_task, 2), "")
    return readiness.verdict(members, by_task, reachable).problems if slot in facts else ()
