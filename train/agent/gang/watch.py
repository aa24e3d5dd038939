"""Watch a running attempt: success, evaluators, hosts that join or leave, and hangs. Pure."""

from __future__ import annotations

from typing import List, Optional, Tuple

from train.agent.checkpoints.snapshot import Snapshot, newer
from train.agent.gang import growth
from train.agent.gang.assignment import count_workers, is_coordinated
from train.agent.gang.attempt import Ending, Gang, HangWatch
from train.agent.gang.growth import joining_slots
from train.agent.gang.hang import blocking_task, describe_hang
from train.agent.gang.states import SlotStatus, Stage
from train.agent.gang.stop import end_attempt, watch_for_idleness
from train.agent.protocol.records import HangInspection, OnHang, Outcome, Reason, ReasonKind, SuccessPolicy
from train.agent.protocol.wording import join_names

_INSPECTION_TIMEOUT_S = 5.0
_LONGEST_QUIET_START_S = 60.0
EVALUATION_S = 300.0  # for evaluators to evaluate the last checkpoint after the training
EVALUATION_IDLE_S = 10.0  # an evaluator that has the last checkpoint and was idle this long is done


def advance_go(gang: Gang, now: float) -> Gang:
    """Watch the running tasks; end the attempt if it fails, grows, or hangs, and the job if it succeeds."""
    gang = _drop_failed_evaluators(gang)
    if gang.evaluation.trained_at is None:
        failure = gang.find_failure()
        if failure is not None:
            return end_attempt(gang, failure, now)
        if not _has_succeeded(gang):
            gang = watch_for_idleness(gang, now)
            grown = _watch_for_growth(gang, now) if gang.stage is Stage.GO else gang
            return _watch_for_hang(grown, now) if grown.stage is Stage.GO else grown
        gang = gang._replace(evaluation=gang.evaluation._replace(trained_at=now))
    return _advance_evaluation(gang, now)


def _watch_for_growth(gang: Gang, now: float) -> Gang:
    """End the attempt at a checkpoint if new hosts have joined, unless a task has ended already."""
    gang = _reject_misfits(gang)
    before, candidates = gang.growth.candidates, joining_slots(gang)
    if candidates != before:
        since = gang.growth.since if before else gang.snapshot
        gang = gang._replace(growth=gang.growth._replace(candidates=candidates, since=since))
        new = [gang.describe_slot(slot) for slot in candidates if slot not in before]
        clause = "" if gang.snapshot is not None else ", and this job has saved none yet"
        notices = [f"{name} joins at the next complete checkpoint{clause}" for name in new]
        gang = gang._replace(notices=(*gang.notices, *notices))
    has_ended = any(gang.has_ended(slot) for slot in gang.training_slots())
    if not candidates or has_ended or not _has_saved_since(gang, gang.growth.since):
        return gang
    workers, names = count_workers(gang.assigned_tasks()) + len(candidates), list(map(gang.describe_slot, candidates))
    text = f"{join_names(names)} {'joins' if len(names) == 1 else 'join'}, which makes {workers} workers"
    return end_attempt(gang, Ending(Outcome.FAILED, reason=Reason(text, ReasonKind.GROWTH)), now)


def _has_saved_since(gang: Gang, since: Optional[Snapshot]) -> bool:
    """Return True if this attempt has completed a checkpoint after another one."""
    return gang.snapshot is not None and gang.snapshot.attempt == gang.attempt and newer(gang.snapshot, since)


def _reject_misfits(gang: Gang) -> Gang:
    """Leave out new hosts whose versions, GPUs, or disk do not fit, before the job is interrupted for them."""
    for slot in joining_slots(gang):
        problems = growth.misfits(gang, slot) if slot not in gang.growth.candidates else ()
        if problems:
            state = gang.growth._replace(rejected=gang.growth.rejected | {slot})
            notice = f"{gang.describe_slot(slot)} does not join: {'; '.join(problems)}"
            gang = gang._replace(growth=state, notices=(*gang.notices, notice))
    return gang


def _decisive_slots(gang: Gang) -> List[str]:
    """Return the slots whose success the success of the job depends on."""
    return gang.training_slots()[:1] if gang.terms.policy.success is SuccessPolicy.CHIEF else gang.training_slots()


def _has_succeeded(gang: Gang) -> bool:
    return bool(gang.eventful) and all(gang.has_ended(slot) for slot in _decisive_slots(gang))


def _drop_failed_evaluators(gang: Gang) -> Gang:
    """Report failed evaluators. No other task waits for them, so training continues."""
    for slot in gang.evaluator_slots():
        failed = gang.task_failure(slot)
        reason = failed.reason.text if failed is not None else gang.lost.get(slot, "")
        if reason and slot not in gang.evaluation.dropped:
            notice = f"{reason}; training continues without it"
            evaluation = gang.evaluation._replace(dropped=gang.evaluation.dropped | {slot})
            gang = gang._replace(evaluation=evaluation, notices=(*gang.notices, notice))
    return gang


def _advance_evaluation(gang: Gang, now: float) -> Gang:
    """Let evaluators evaluate the last checkpoint after training has ended."""
    unfinished = [
        slot for slot in gang.evaluator_slots() if not gang.has_ended(slot) and slot not in gang.evaluation.dropped
    ]
    statuses = [gang.status_of(slot) for slot in unfinished]
    if gang.evaluation.last_checkpoint_at is None and _has_last_checkpoint(gang, statuses):
        gang = gang._replace(evaluation=gang.evaluation._replace(last_checkpoint_at=now))
    late_at, idle_at = evaluation_deadlines(gang)
    idle = all(min(status.quiet_s, status.idle_s) >= EVALUATION_IDLE_S for status in statuses)
    late = late_at is not None and now >= late_at
    if not statuses or late or (idle and idle_at is not None and now >= idle_at):
        return end_attempt(gang, Ending(Outcome.SUCCEEDED), now)
    return gang


def _has_last_checkpoint(gang: Gang, statuses: List[SlotStatus]) -> bool:
    if not all(gang.status_of(slot).closed for slot in _decisive_slots(gang)):
        return False
    is_copied = any(report.source is not None for report in gang.statuses.values())
    return not is_copied or all(report.snapshot == gang.snapshot for report in statuses)


def evaluation_deadlines(gang: Gang) -> Tuple[Optional[float], Optional[float]]:
    """Return when evaluators are stopped at the latest, and when they are stopped if they are idle."""
    trained_at, last_checkpoint_at, _ = gang.evaluation
    latest = trained_at + EVALUATION_S if trained_at is not None else None
    idle = last_checkpoint_at + EVALUATION_IDLE_S if last_checkpoint_at is not None else None
    return latest, idle


def _watch_for_hang(gang: Gang, now: float) -> Gang:
    hang = gang.hang
    if hang.deadline is not None:
        return _evaluate_inspection(gang, hang.deadline, now)
    if not _is_hung(gang, now):
        progress = hang.reported and not _is_quiet(gang, gang.terms.policy.hang_timeout_s)
        return gang._replace(hang=hang._replace(reported=False)) if progress else gang
    if hang.reported:
        return gang
    return gang._replace(hang=HangWatch(hang.inspection + 1, now + _INSPECTION_TIMEOUT_S))


def _is_quiet(gang: Gang, seconds: float) -> bool:
    """Return True if no trainer has produced output for `seconds` and at least one was idle.

    With a coordinator all of them must be idle: workers write nothing, and the coordinator computes nothing.
    """
    running = gang.running_statuses(gang.training_slots())
    idle = [status.idle_s >= seconds for status in running]
    is_idle = all(idle) if is_coordinated(gang.assigned_tasks()) else any(idle)
    return bool(running) and is_idle and all(status.quiet_s >= seconds for status in running)


def _is_start_overdue(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.start_timeout_s
    if limit_s <= 0 or now < gang.began_at + limit_s:
        return False
    has_stepped = any(gang.status_of(slot).stepped for slot in gang.training_slots())
    return not has_stepped and _is_quiet(gang, min(_LONGEST_QUIET_START_S, limit_s / 2))


def _is_hung(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.hang_timeout_s
    return (limit_s > 0 and _is_quiet(gang, limit_s)) or _is_start_overdue(gang, now)


def _evaluate_inspection(gang: Gang, latest: float, now: float) -> Gang:
    inspected_slots = [slot for slot in gang.assigned_slots() if slot not in gang.evaluator_slots()]
    running = gang.running_statuses(inspected_slots)
    inspected = [report for report in running if report.inspected == gang.hang.inspection]
    if len(inspected) < len(running) and now < latest:
        return gang
    policy = gang.terms.policy
    gang = gang._replace(hang=gang.hang._replace(deadline=None, reported=True))
    members = [member for member in gang.members if member.slot in inspected_slots]
    hangs = {gang.display_name(report.slot): report.hang for report in inspected if report.hang is not None}
    for slot, task in ((member.slot, member.task) for member in members if gang.has_ended(member.slot)):
        hangs[task] = HangInspection(slot, task, gang.attempt, 0.0, "", "", [])
    first_failed_slot, is_overdue = gang.find_slot(blocking_task(hangs, members)), _is_start_overdue(gang, now)
    clause = f"no progress for {policy.hang_timeout_s:g} s"
    if is_overdue:
        clause = f"no first step within {policy.start_timeout_s:g} s"
    reason = Reason(f"{clause}: {describe_hang(hangs, members)}", ReasonKind.HANG)
    if is_overdue or policy.on_hang is OnHang.RESTART:
        return end_attempt(gang, Ending(Outcome.FAILED, first_failed_slot, reason), now)
    return gang._replace(notices=(*gang.notices, reason.text))
