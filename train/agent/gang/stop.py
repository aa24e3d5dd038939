"""Decide when an attempt ends, how long its tasks have, and whether another attempt follows. Pure."""

from __future__ import annotations

from typing import List, Optional

from train import defaults
from train.agent.gang.attempt import NOT_READY, Ending, Gang
from train.agent.gang.growth import fails_by_growth, is_growth, leave_out_newcomers
from train.agent.gang.states import Stage
from train.agent.protocol.records import JobResult, Outcome, Policy, Reason, ReasonKind, RestartPolicy

# Added to the grace period, for SIGKILL to take effect and the status to arrive.
STOP_MARGIN_S = 10.0
# TensorFlow's PreemptionCheckpointHandler exits with this code after it has written the checkpoint.
# Source: tf.distribute.experimental.TerminationConfig
RESTART_EXIT_CODE = 42
_MINUTE_S = 60.0
_LIFETIME_OVER = "the lifetime of the hosts is over (--max-duration)"
_SAVED_S = 5.0  # before that end, the result is recorded, whatever is still being copied


def shorten_stop(gang: Gang) -> Gang:
    """Shorten the end of an attempt for growth: a lost slot may lead the next attempt already.

    A new leader waits only for tasks that end after a failure, see `_fence_s`. The checkpoint is complete here.
    """
    if gang.stage is not Stage.STOP or not is_growth(gang.end):
        return gang
    return gang._replace(grace_s=min(gang.grace_s, defaults.KILL_AFTER_FAILURE_S))


def tolerates_preemption(policy: Policy, preemptions: int) -> bool:
    """Return True if one more loss of a host, after `preemptions` of them, is not a failure of the job."""
    return policy.preemptions < 0 or preemptions < policy.preemptions


def survives_loss(gang: Gang) -> bool:
    """Return True if the job survives the loss of one more host."""
    return tolerates_preemption(gang.terms.policy, gang.preemptions) or gang.restarts < gang.terms.policy.restarts


def enforce_job_timeout(gang: Gang, now: float) -> Gang:
    """End the job when its time is over."""
    late = gang.job_deadline is not None and now >= gang.job_deadline
    if not late or gang.stage in (Stage.STOP, Stage.RESULT):
        return gang
    if gang.evaluation.trained_at is not None:
        return end_attempt(gang, Ending(Outcome.SUCCEEDED), now)
    text = f"the job ran longer than {gang.terms.policy.timeout_s:g} s (--timeout)"
    return end_attempt(gang, Ending(Outcome.FAILED, "", Reason(text, ReasonKind.TIMEOUT), final=True), now)


def _update_lifetime(gang: Gang) -> Gang:
    """Return the gang with the end of the lifetime that ends first among those of the hosts that it requires.

    Spares do not count, nor do evaluators, without which training continues.
    """
    reports = [gang.statuses[slot] for slot in gang.required_slots() if slot in gang.connected]
    earliest = min((report.end_at for report in reports if report.end_at is not None), default=None)
    return gang if earliest == gang.lifetime_end else gang._replace(lifetime_end=earliest)


def _last_moment(gang: Gang) -> Optional[float]:
    """Return when the tasks must be ended, so that their last checkpoint is copied by the end of the lifetime."""
    return None if gang.lifetime_end is None else gang.lifetime_end - gang.terms.grace_s - defaults.LIFETIME_SAVE_S


def lifetime_deadlines(gang: Gang) -> List[Optional[float]]:
    """Return when the next step at the end of the lifetime of the hosts is due."""
    last = _last_moment(gang)
    if gang.stage is Stage.STOP:
        return [_saved_by(gang)] if gang.end is not None and gang.end.reason.kind is ReasonKind.LIFETIME else []
    if last is None:
        return []
    return [last, None if _is_warned(gang) else last - defaults.LIFETIME_WARN_S]


def _is_warned(gang: Gang) -> bool:
    """Return True unless the end of the lifetime has changed by a minute since the user was warned of it."""
    warned_of, end = gang.warned_of, gang.lifetime_end
    return end is None or (warned_of is not None and abs(end - warned_of) < _MINUTE_S)


def enforce_lifetime(gang: Gang, now: float) -> Gang:
    """Warn of the end of the hosts' lifetime; end the job in time to copy its last checkpoint to all hosts."""
    gang = _update_lifetime(gang)
    last = _last_moment(gang)
    if last is None or gang.stage in (Stage.STOP, Stage.RESULT) or now < last - defaults.LIFETIME_WARN_S:
        return gang
    if now >= last:
        over = Ending(Outcome.FAILED, "", Reason(_LIFETIME_OVER, ReasonKind.LIFETIME), final=True)
        return end_attempt(gang, over if gang.evaluation.trained_at is None else Ending(Outcome.SUCCEEDED), now)
    if _is_warned(gang):
        return gang
    minutes = max(1, round((last - now) / _MINUTE_S))
    notice = f"the lifetime of the hosts ends: the job is stopped in {minutes} min; fleet extend gives it more time"
    return gang._replace(warned_of=gang.lifetime_end, notices=(*gang.notices, notice))


def watch_for_idleness(gang: Gang, now: float) -> Gang:
    """End the job if none of its tasks has done anything for the idle timeout of the hosts, which power off later."""
    limit_s = gang.terms.policy.idle_timeout_s
    inactive = [status.inactive_s for status in gang.running_statuses(gang.assigned_slots())]
    if limit_s <= 0 or not inactive:
        return gang
    # Tasks that have ended since were active, too.
    active_at = max(gang.active_at, gang.began_at, now - min(inactive))
    if active_at > gang.active_at:
        gang = gang._replace(active_at=active_at)
    if now - active_at < limit_s:
        return gang
    text = f"no task was active for {limit_s / _MINUTE_S:g} min (--idle-timeout of the hosts)"
    return end_attempt(gang, Ending(Outcome.FAILED, "", Reason(text, ReasonKind.LIFETIME), final=True), now)


def _saved_by(gang: Gang) -> float:
    """Return when the result is recorded, whatever is still being copied: the hosts power off soon."""
    copied_by = gang.ended_at + gang.grace_s + defaults.LIFETIME_SAVE_S
    return (copied_by if gang.lifetime_end is None else min(copied_by, gang.lifetime_end)) - _SAVED_S


def is_saving(gang: Gang, now: float) -> bool:
    """Return True while the last checkpoint is being copied because the hosts power off soon."""
    if gang.end is None or gang.end.reason.kind is not ReasonKind.LIFETIME or now >= _saved_by(gang):
        return False
    reports = [gang.statuses[slot] for slot in gang.connected if slot in gang.statuses]
    is_copied = any(report.source is not None for report in reports)
    return is_copied and any(report.snapshot != gang.snapshot for report in reports)


def apply_stop_request(gang: Gang, grace_s: float, now: float) -> Gang:
    """End the job on request, unless it has ended or fails already."""
    if gang.stage is Stage.RESULT or (gang.end is not None and gang.end.outcome is Outcome.CANCELLED):
        return gang
    end = Ending(Outcome.CANCELLED, "", Reason("stopped on request"))
    if gang.stage is Stage.STOP:  # it is ending and will not restart
        failed = gang.end is not None and gang.end.outcome is Outcome.FAILED and not _should_restart(gang)
        return gang if failed else gang._replace(end=end)
    return end_attempt(gang, end, now, grace_s)


def end_attempt(gang: Gang, end: Ending, now: float, grace_s: Optional[float] = None) -> Gang:
    """End the attempt; without a grace period, tasks have the time that fits the reason."""
    if fails_by_growth(gang, end):
        gang, end = leave_out_newcomers(gang, end)
    if grace_s is None:
        hopeless = end.outcome is Outcome.FAILED and not end.final and not is_growth(end)
        is_taken = gang.is_preempted(end.first_failed_slot)
        longest_s = defaults.KILL_AFTER_PREEMPTION_S if is_taken else defaults.KILL_AFTER_FAILURE_S
        grace_s = min(gang.terms.grace_s, longest_s) if hopeless else gang.terms.grace_s
    return gang._replace(end=end, ended_at=now, grace_s=grace_s).enter(Stage.STOP, now)


def advance_stop(gang: Gang, now: float) -> Gang:
    """Wait until all tasks have ended; then wait for the next attempt, or end the job."""
    unfinished = [slot for slot in gang.assigned_slots() if slot not in gang.lost and not gang.status_of(slot).closed]
    if (unfinished and now < stop_deadline(gang)) or (not unfinished and is_saving(gang, now)):
        return gang
    unheard_peers = {slot: f"{gang.describe_slot(slot)} did not answer" for slot in unfinished}
    gang = gang._replace(lost={**gang.lost, **unheard_peers}, end=_first_cause(gang))
    return gang.enter(Stage.WAIT, now) if _should_restart(gang) else finish(gang, now)


def stop_deadline(gang: Gang) -> float:
    """Return when tasks that have not ended are given up."""
    return gang.began_at + gang.grace_s + max(STOP_MARGIN_S, gang.terms.link_timeout_s + 1.0)


def _first_cause(gang: Gang) -> Optional[Ending]:
    """Return the end with its first cause: peers of a lost host may fail before the loss is known."""
    end = gang.end
    if end is None or end.outcome is not Outcome.FAILED or end.final or end.host_lost:
        return end
    preemption = gang.find_preemption()
    if preemption is not None:
        return preemption
    follows = end.summary == NOT_READY or (end.exit is not None and end.exit.code is not None) or is_growth(end)
    for slot, reason in gang.lost.items() if follows else ():
        if slot in gang.evaluator_slots() or slot in gang.growth.rejected:
            continue
        return Ending(Outcome.FAILED, slot, Reason(reason, ReasonKind.HOST_LOST), host_lost=True)
    return end


def is_tolerated_preemption(gang: Gang) -> bool:
    """Return True if the attempt ends by the loss of a host that is not a failure of the job."""
    end = gang.end
    if end is None or not end.host_lost or end.final or gang.isolated:
        return False
    return tolerates_preemption(gang.terms.policy, gang.preemptions)


def _should_restart(gang: Gang) -> bool:
    """Return True if the policy requires another attempt."""
    policy, end = gang.terms.policy, gang.end
    if end is None or end.outcome is not Outcome.FAILED or end.final or gang.isolated:
        return False
    if is_tolerated_preemption(gang) or is_growth(end):
        return True
    if policy.restart is RestartPolicy.NEVER or gang.restarts >= policy.restarts:
        return False
    code = end.exit.code if end.exit is not None else None
    permanent = code is not None and code < 128 and code != RESTART_EXIT_CODE
    return not (permanent and policy.restart is RestartPolicy.EXIT_CODE)


def finish(gang: Gang, now: float) -> Gang:
    """Record the result of the job."""
    end = gang.end or Ending(Outcome.SUCCEEDED)
    result = JobResult(
        gang.terms.job,
        gang.attempt,
        end.outcome,
        0.0,
        gang.display_name(end.first_failed_slot),
        end.reason.text,
        gang.exits(),
        gang.started,
        isolated=gang.isolated or 2 * len(gang.connected) <= len(gang.known_slots()),
        reason_kind=end.reason.kind,
    )
    return gang._replace(result=result).enter(Stage.RESULT, now)
