"""Decide when the next attempt begins, and in which slots: restarts, replacements, and spares. Pure."""

from __future__ import annotations

from typing import List

from train import defaults
from train.agent.gang import growth
from train.agent.gang.assignment import Assignments, count_workers, reassign, with_workers
from train.agent.gang.attempt import Ending, Evaluation, Gang, Growth, HangWatch, current_members
from train.agent.gang.growth import is_growth
from train.agent.gang.states import Stage
from train.agent.gang.stop import finish, is_tolerated_preemption, survives_loss
from train.agent.protocol.records import Outcome, Reason, ReasonKind

PREEMPTION_TIMEOUT_S = 60.0  # after this time a preempted host that still exists is kept
_REPORT_PAUSE_S = 0.2  # between two attempts; all slots receive, and report, that the first one has ended


def preemption_warning(gang: Gang, slot: str) -> str:
    """Return the warning for the user that the cloud provider is about to take a host."""
    playing = gang.assigned_slots()
    replacement = next((candidate for candidate in sorted(gang.available_slots()) if candidate not in playing), "")
    if slot not in playing:
        consequence = "it has no task now"
    elif slot in gang.evaluator_slots():
        consequence = "training continues without it"
    elif not survives_loss(gang) or not gang.started:
        consequence = "the job ends with it"
    else:
        consequence = f"{replacement} replaces it" if replacement else "the job continues when it is replaced"
    return f"{gang.display_name(slot)} is being preempted; {consequence}"


def _backoff_s(gang: Gang) -> float:
    if is_growth(gang.end):
        return 0.0
    return min(defaults.LONGEST_BACKOFF_S, gang.terms.policy.backoff_s * 2.0 ** min(gang.restarts, 20))


def retry_time(gang: Gang) -> float:
    """Return when the next attempt may begin: the back-off runs while the tasks of this one are stopped."""
    return max(gang.ended_at + _backoff_s(gang), gang.began_at + _REPORT_PAUSE_S, gang.fenced_until)


def advance_wait(gang: Gang, now: float) -> Gang:
    """Begin the next attempt when its hosts are there, or give the job up."""
    host_lost = [slot for slot in sorted(gang.connected) if gang.is_preempted(slot)]
    if host_lost and len(host_lost) == len(gang.connected) and now >= presence_deadline(gang):
        return _give_up(gang, "no other host is left", now)
    if now < retry_time(gang) or (
        now < gang.began_at + PREEMPTION_TIMEOUT_S and _must_await_preempted(gang, host_lost)
    ):
        return gang
    before, idle = (gang.assignments(), [slot for slot in gang.available_slots() if slot not in gang.growth.rejected])
    tasks, whole = _required_tasks(gang), _has_quorum(gang)
    assignments = reassign(tasks, before, idle, fewest=None) if whole else None
    if assignments is None and now >= give_up_time(gang):
        assignments = reassign(tasks, before, idle, fewest=_fewest_workers(gang)) if whole else None
        if assignments is None:
            return _give_up(gang, f"it was not replaced within {gang.terms.policy.host_timeout_s:g} s", now)
    elif assignments is not None:
        assignments = _with_candidates(gang, assignments, idle)
    return gang if assignments is None else _begin_attempt(gang, assignments, now)


def _required_tasks(gang: Gang) -> List[str]:
    """Return the tasks that the next attempt must have: those of the job, and the workers that joined since."""
    kept = [task for task, slot in gang.assignments().items() if slot not in gang.growth.rejected]
    return with_workers(gang.terms.tasks, count_workers(kept))


def _has_quorum(gang: Gang) -> bool:
    """Return False if the other part of a divided network could continue the job, too.

    After a growth, two parts can have enough slots for all tasks, so the one with more than half of them continues.
    """
    policy = gang.terms.policy
    if policy.min_workers or not policy.max_workers or not gang.joined:
        return True
    return 2 * len(gang.connected) > len(gang.known_slots())


def _fewest_workers(gang: Gang) -> int:
    """Return the minimum number of workers of the next attempt.

    By default all that the job started with, and if it has grown, more than half of the last ones, so that two parts
    of a divided network never both continue.
    """
    policy, tasks = gang.terms.policy, gang.terms.tasks
    if policy.min_workers or not policy.max_workers:
        return policy.min_workers or len(tasks)
    return max(count_workers(tasks), 1 + count_workers(gang.assigned_tasks()) // 2)


def _with_candidates(gang: Gang, assignments: Assignments, idle: List[str]) -> Assignments:
    """Return the assignments of the next attempt, with further workers in the slots that are left."""
    workers = count_workers(assignments)
    free = [slot for slot in idle if slot not in assignments.values()]
    joining = growth.choose_candidates(gang, free, workers)
    if not joining:
        return assignments
    tasks = with_workers(list(assignments), workers + len(joining))
    return reassign(tasks, assignments, [*assignments.values(), *joining], fewest=None) or assignments


def give_up_time(gang: Gang) -> float:
    """Return when a missing host is given up: a host lost during the back-off has all of the host timeout, too."""
    last_lost_at = max(gang.began_at, gang.last_lost_at)
    return max(retry_time(gang), last_lost_at + gang.terms.policy.host_timeout_s)


def presence_deadline(gang: Gang) -> float:
    """Return the time after which a slot that is not connected counts as absent."""
    all_here = len(gang.connected) == len(gang.known_slots())
    return gang.began_at + (0.0 if all_here else gang.terms.link_timeout_s)


def _must_await_preempted(gang: Gang, host_lost: List[str]) -> bool:
    """Return True if a preempted host leads or holds the only copies, so others must copy or take over first."""
    return gang.local_slot in host_lost or (
        bool(holders := gang.checkpoint_holders()) and all(slot in host_lost for slot in holders)
    )


def _give_up(gang: Gang, why: str, now: float) -> Gang:
    """End a job that cannot start another attempt; `why` completes the reason."""
    end = gang.end
    missing = [slot for slot in gang.assigned_slots() if slot not in gang.connected]
    if is_growth(end):
        first = next(iter(missing), gang.members[0].slot)
        reason = Reason(f"{gang.describe_slot(first)} was lost", ReasonKind.HOST_LOST)
        end, missing = Ending(Outcome.FAILED, first, reason, host_lost=True), missing[1:]
    if end is not None and end.host_lost:
        later = [] if end.first_failed_slot in missing else missing
        addition = f"; {gang.describe_slot(later[0])} was lost after that" if later else ""
        reason = end.reason._replace(text=f"{end.reason.text}{addition}, and {why}")
        gang = gang._replace(end=end._replace(reason=reason))
    return finish(gang, now)


def _begin_attempt(gang: Gang, assignments: Assignments, now: float) -> Gang:
    attempt = 1 + max(gang.attempt, *(report.attempt for report in gang.statuses.values()))
    changes = _describe_changes(gang.assignments(), assignments)
    survived, grows = is_tolerated_preemption(gang), is_growth(gang.end)
    joined = frozenset(assignments.values()) - frozenset(gang.assigned_slots())
    has_grown = count_workers(assignments) > count_workers(gang.assigned_tasks())
    gang = gang._replace(
        attempt=attempt,
        restarts=gang.restarts + (not survived and not grows),
        preemptions=gang.preemptions + survived,
        members=current_members(gang.terms, assignments, gang.statuses),
        lost={},
        end=None,
        grace_s=0.0,
        hang=HangWatch(),
        evaluation=Evaluation(),
        growth=Growth(trial=joined if has_grown else frozenset(), rejected=gang.growth.rejected),
        notices=(f"attempt {attempt}: {changes}",) if changes else (),
    )
    return gang.enter(Stage.RESERVE, now)


def _describe_changes(before: Assignments, after: Assignments) -> str:
    gone = [slot for slot in before.values() if slot not in after.values()]
    new = [slot for task, slot in after.items() if task == slot and task not in before]
    clauses = [f"without slot {', '.join(gone)}"] if gone else []
    clauses += [f"with {', '.join(new)}"] if new else []
    moved = {task: slot for task, slot in after.items() if before.get(task) != slot and slot not in new}
    clauses += [f"{task} runs in slot {slot}" for task, slot in moved.items()]
    return ", ".join(clauses)
