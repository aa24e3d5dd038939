"""Gang scheduling as a pure state machine: all tasks start together, and the first failure stops all of them.

The leader feeds it with the status of all slots and sends `desired_state` to each of them, its own slot included.
Distributed TensorFlow hangs if a peer is missing, so no job runs partially. After a failure all tasks start
again together, with new ports, from the newest complete checkpoint.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from train import defaults
from train.agent.checkpoints.snapshot import newest
from train.agent.gang import restart, start, stop, watch
from train.agent.gang.assignment import initial_assignments
from train.agent.gang.attempt import FIXED_CHECKPOINT_STAGES, START_STAGES, Ending, Gang, JobTerms, current_members
from train.agent.gang.growth import joining_slots
from train.agent.gang.states import DesiredState, SlotStatus, Stage
from train.agent.protocol.records import AttemptEnded, Member, Outcome

# Interval of heartbeats as a fraction of the link timeout; silence is noticed one interval early.
BEAT_FRACTION = 0.2
_KILL_S = 1.0


def _fence_s(terms: JobTerms) -> float:
    return BEAT_FRACTION * terms.link_timeout_s + defaults.KILL_AFTER_FAILURE_S + _KILL_S


def form_gang(terms: JobTerms, local_slot: str, now: float, term: int = 1) -> Gang:
    """Return a gang in its first attempt, before any status was received."""
    members = current_members(terms, initial_assignments(terms.slots), {})
    stage = Stage.LAUNCH if terms.resume is None else Stage.RESERVE  # which waits for the hosts that hold it
    stage = Stage.QUEUE if terms.queued else stage
    return Gang(terms, local_slot, term, 1, stage, members, now)


def take_over(
    terms: JobTerms, last: DesiredState, local_slot: str, now: float, *, end: Ending, lost: Dict[str, str], term: int
) -> Gang:
    """Return a gang whose leader was lost and that `local_slot` leads now: the attempt ends, statuses are unknown.

    Args:
        terms: Terms of the job.
        last: Last desired state of the previous leader.
        local_slot: Name of the local slot.
        now: Current time.
        end: Why the attempt ends, unless it had ended before.
        lost: Lost slots, and how each was lost.
        term: New term; later than any before.
    """
    gang = Gang(terms, local_slot, term, last.attempt, Stage.GO, tuple(last.members), now)
    gang = gang._replace(restarts=last.restarts, preemptions=last.preemptions, lost=lost)
    gang = gang._replace(started=last.started, snapshot=last.snapshot, joined=tuple(last.joined))
    if lost:
        gang = gang._replace(fenced_until=now + _fence_s(terms))
    if last.trained and end.outcome is Outcome.FAILED:
        end = Ending(Outcome.SUCCEEDED)
    elif last.stage is Stage.WAIT or (last.stage is Stage.STOP and last.preempted):
        end = end._replace(reason=last.reason, first_failed_slot=last.first_failed_slot, host_lost=last.preempted)
    return stop.end_attempt(gang, end, now)


def receive_status(gang: Gang, report: SlotStatus, now: float) -> Gang:
    """Update the gang with the status of a slot."""
    if gang.result is not None or all(member.slot != report.slot for member in gang.terms.slots):
        return gang
    if report.attempt < gang.status_of(report.slot).attempt:
        gang = mark_lost(gang, report.slot, "another agent replaced it", now)
    is_new = report.preempted and not gang.is_preempted(report.slot)
    is_eventful = report.exit is not None or bool(report.reason) or report.preempted
    gang = gang._replace(
        statuses={**gang.statuses, report.slot: report},
        eventful=gang.eventful | {report.slot} if is_eventful else gang.eventful - {report.slot},
        connected=gang.connected | {report.slot},
        snapshot=gang.snapshot if gang.stage in FIXED_CHECKPOINT_STAGES else newest(gang.snapshot, report.snapshot),
    )
    if report.slot in gang.terms.joinable:
        others = tuple(member for member in gang.joined if member.slot != report.slot)
        gang = gang._replace(joined=(*others, Member(report.slot, "", report.address, 0, report.link_port)))
    if is_new:
        gang = gang._replace(notices=(*gang.notices, restart.preemption_warning(gang, report.slot)))
    if report.stop_grace_s is not None:
        gang = stop.apply_stop_request(gang, report.stop_grace_s, now)
    return advance(gang, now)


def mark_lost(gang: Gang, slot: str, reason: str, now: float) -> Gang:
    """Mark a slot as lost: its agent is gone or was silent for too long. `reason` is a clause that says which."""
    if gang.result is not None or slot == gang.local_slot:
        return gang
    message = f"{gang.describe_slot(slot)} was lost: {reason}"
    lost = gang.lost
    is_needed = slot in gang.assigned_slots() and gang.stage is not Stage.QUEUE  # where it has time to come back
    if is_needed and slot not in lost and not gang.has_ended(slot):
        lost = {**lost, slot: message}
        gang = stop.shorten_stop(gang)
    fenced_until = now + _fence_s(gang.terms)
    last_lost_at = now if slot in gang.connected else gang.last_lost_at
    growth = gang.growth._replace(rejected=gang.growth.rejected - {slot})
    gang = gang._replace(connected=gang.connected - {slot}, lost=lost, growth=growth)
    return advance(gang._replace(fenced_until=fenced_until, last_lost_at=last_lost_at), now)


def request_stop(gang: Gang, grace_s: float, now: float) -> Gang:
    """End the job on request of a user."""
    return advance(stop.apply_stop_request(gang, grace_s, now), now)


def advance(gang: Gang, now: float) -> Gang:
    """Return the gang after all transitions that are due by `now`."""
    while True:
        before, gang = gang, stop.enforce_lifetime(stop.enforce_job_timeout(gang, now), now)
        gang = _STEPS[gang.stage](gang, now) if gang.stage in _STEPS else gang
        if gang is before:
            return gang


def deadline(gang: Gang, now: float) -> Optional[float]:
    """Return when `advance` is due after `now` if no status arrives, or None."""
    due: List[Optional[float]] = [gang.job_deadline if gang.stage is not Stage.STOP else None]
    if gang.stage is Stage.RESULT:
        return None
    due += stop.lifetime_deadlines(gang)
    if gang.stage is Stage.QUEUE:
        due.append(gang.began_at + gang.terms.join_timeout_s if start.awaits_slots(gang) else None)
    elif gang.stage in (Stage.RESERVE, Stage.LAUNCH):
        due.append(gang.began_at + gang.terms.join_timeout_s)
        due.append(gang.began_at + start.HOLDER_TIMEOUT_S)
    elif gang.stage is Stage.CHECK:
        due.append(gang.began_at + start.CHECK_TIMEOUT_S)
    elif gang.stage is Stage.GO:
        due += [gang.hang.deadline, *watch.evaluation_deadlines(gang)]
    elif gang.stage is Stage.STOP:
        due.append(stop.stop_deadline(gang))
    else:
        waits = (
            0.0,
            restart.presence_deadline(gang),
            gang.began_at + restart.PREEMPTION_TIMEOUT_S,
            restart.give_up_time(gang),
        )
        due += [max(restart.retry_time(gang), point) for point in waits]
    return min((point for point in due if point is not None and point > now), default=None)


def desired_state(gang: Gang) -> DesiredState:
    """Return the state that all slots have to reach now."""
    end = gang.end or Ending(Outcome.SUCCEEDED)
    sources = [
        report.source
        for slot, report in sorted(gang.statuses.items() if gang.snapshot is not None else ())
        if slot in gang.connected and report.source is not None and report.snapshot == gang.snapshot
    ]
    return DesiredState(
        term=gang.term,
        leader=gang.local_slot,
        attempt=gang.attempt,
        stage=gang.stage,
        members=list(gang.members),
        joined=sorted(gang.joined),
        restarts=gang.restarts,
        preemptions=gang.preemptions,
        started=gang.started,
        snapshot=gang.snapshot,
        sources=sources,
        reason=end.summarize(),
        first_failed_slot=end.first_failed_slot,
        preempted=stop.is_tolerated_preemption(gang),
        grace_s=gang.grace_s,
        ended=_attempt_ended(gang, end) if gang.stage is Stage.WAIT else None,
        notices=list(gang.notices),
        inspection=gang.hang.inspection,
        result=gang.result,
        trained=gang.evaluation.trained_at is not None,
        start_delay_s=gang.start_delay_s,
    )


def _attempt_ended(gang: Gang, end: Ending) -> AttemptEnded:
    reason, first = end.summarize(), gang.display_name(end.first_failed_slot)
    retry_s = round(restart.retry_time(gang) - gang.began_at, 3)
    ended = AttemptEnded("", gang.attempt, 0.0, first, reason.text, gang.exits(), retry_s)
    return ended._replace(
        preempted=stop.is_tolerated_preemption(gang),
        first_failed_slot=end.first_failed_slot,
        reason_kind=reason.kind,
        joining=list(joining_slots(gang)),
    )


_STEPS: Dict[Stage, Callable[[Gang, float], Gang]] = {
    **dict.fromkeys(START_STAGES, start.advance_start),
    Stage.GO: watch.advance_go,
    Stage.STOP: stop.advance_stop,
    Stage.WAIT: restart.advance_wait,
}
