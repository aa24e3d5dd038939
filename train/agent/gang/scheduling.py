"""Gang scheduling as a pure state machine: all tasks start together, and the first failure stops all of them.

The leader feeds it with the status of all slots and sends `desired_state` to each of them, its own slot included.
Distributed TensorFlow hangs if a peer is missing, so there is no partial operation. After a failure all tasks start
again together, with new ports, from the newest complete checkpoint.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

from train import defaults
from train.agent.checkpoints.snapshot import Snapshot, newer, newest
from train.agent.gang import growth, readiness
from train.agent.gang.assignment import (
    Assignments,
    count_workers,
    initial_assignments,
    is_coordinated,
    is_evaluator,
    reassign,
    trainers,
    with_workers,
)
from train.agent.gang.growth import Growth
from train.agent.gang.hang import blocking_task, describe_hang
from train.agent.gang.states import DesiredState, SlotStatus, Stage, start_delay_s
from train.agent.protocol.cluster import called
from train.agent.protocol.records import (
    LATEST_S,
    NO_REASON,
    AttemptEnded,
    Exit,
    HangInspection,
    JobResult,
    Member,
    OnHang,
    Outcome,
    Policy,
    Reason,
    ReasonKind,
    RestartPolicy,
    SuccessPolicy,
)
from train.agent.protocol.wording import signal_name

if TYPE_CHECKING:
    from typing import TypeAlias

# Added to the grace period, for SIGKILL to take effect and the status to arrive.
STOP_MARGIN_S = 10.0
# Until every agent has reported which ports it reaches.
CHECK_TIMEOUT_S = 25.0
# TensorFlow's PreemptionCheckpointHandler exits with this code after it has written the checkpoint.
# Source: tf.distribute.experimental.TerminationConfig
RESTART_EXIT_CODE = 42
# Interval of heartbeats as a fraction of the link timeout; silence is noticed one interval early.
BEAT_FRACTION = 0.2
_KILL_S = 1.0
_MINUTE_S = 60.0
_LIFETIME_OVER = "the lifetime of the hosts is over (--max-duration)"
NOT_READY = "the hosts are not ready for the job"
_INSPECTION_TIMEOUT_S = 5.0
_LONGEST_QUIET_START_S = 60.0
_PREEMPTION_TIMEOUT_S = 60.0  # after this time a preempted host that still exists is kept
EVALUATION_S = 300.0  # for evaluators to evaluate the last checkpoint after the training
EVALUATION_IDLE_S = 10.0  # an evaluator that has the last checkpoint and was idle this long is done
_HOLDER_TIMEOUT_S = 5.0  # a new agent does not know the checkpoint of its host yet
_SAVED_S = 5.0  # before that end, the result is recorded, whatever is still being copied
_REPORT_PAUSE_S = 0.2  # between two attempts; all slots receive, and report, that the first one has ended
_FIXED_CHECKPOINT_STAGES = (Stage.LAUNCH, Stage.CHECK)  # all slots must start from the same checkpoint


class JobTerms(NamedTuple):
    """The parameters of a job, fixed when it was committed."""

    job: str
    slots: Tuple[Member, ...]  # with the tasks of the first attempt; spares have none
    policy: Policy = Policy()
    grace_s: float = defaults.GRACE_S
    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    link_timeout_s: float = defaults.LINK_TIMEOUT_S
    resume: Optional[Tuple[int, int]] = None  # attempt and number of the snapshot from which the job continues
    joinable: Tuple[str, ...] = ()  # slots that may join the running job; without an address until they have
    queued: bool = False  # the job waits for the end of an earlier one

    @property
    def tasks(self) -> Tuple[str, ...]:
        """Return all tasks of the job, in order."""
        return tuple(initial_assignments(self.slots))

    @property
    def spares(self) -> int:
        """Return the number of slots that are kept as spares."""
        return sum(not member.task and member.slot not in self.joinable for member in self.slots)


class Ending(NamedTuple):
    """Why an attempt ends."""

    outcome: Outcome
    first_failed_slot: str = ""
    reason: Reason = NO_REASON
    exit: Optional[Exit] = None
    final: bool = False  # never restart
    summary: str = ""  # short form of a long reason
    host_lost: bool = False  # the host of `first_failed_slot` is gone or being preempted


class HangWatch(NamedTuple):
    """The state of the hang detection in an attempt."""

    inspection: int = 0  # number of inspections requested
    deadline: Optional[float] = None  # of the current inspection
    reported: bool = False  # until there is progress again


class QueueState(NamedTuple):
    """The state of a job that waits for an earlier one."""

    gathered: bool = False  # every slot with a task has reported once: the job can start without its client
    is_turn: bool = False  # no earlier job holds a connected slot


class Evaluation(NamedTuple):
    """The state of the evaluation after training."""

    trained_at: Optional[float] = None  # when the decisive slots succeeded
    last_checkpoint_at: Optional[float] = None  # when evaluators received the last checkpoint
    dropped: FrozenSet[str] = frozenset()  # failed evaluators


class Gang(NamedTuple):
    """The state of a job at its leader; points in time are seconds of a monotonic clock."""

    terms: JobTerms
    local_slot: str
    term: int
    attempt: int
    stage: Stage
    members: Tuple[Member, ...]  # of this attempt, in the order of their tasks
    began_at: float  # start of the stage
    restarts: int = 0
    preemptions: int = 0
    connected: FrozenSet[str] = frozenset()
    statuses: Dict[str, SlotStatus] = {}
    eventful: FrozenSet[str] = frozenset()  # slots whose last status reports an end, a problem, or a preemption
    lost: Dict[str, str] = {}  # slot of this attempt -> how it was lost
    started: bool = False  # True if user code ever ran
    job_deadline: Optional[float] = None
    lifetime_end: Optional[float] = None  # when the job must have ended on the first of its connected hosts
    leaving: FrozenSet[str] = frozenset()  # slots whose hosts are stopped for maintenance soon
    leaving_since: Optional[Snapshot] = None  # newest checkpoint when a host was last announced to leave
    warned_of: Optional[float] = None  # the end of the lifetime of which the user was warned
    end: Optional[Ending] = None
    ended_at: float = 0.0  # when the end of the attempt was decided; its tasks end after that
    grace_s: float = 0.0
    fenced_until: float = 0.0  # lost slots have noticed the loss and ended their tasks by then
    snapshot: Optional[Snapshot] = None
    notices: Tuple[str, ...] = ()
    hang: HangWatch = HangWatch()
    active_at: float = 0.0  # when a task was last known to be active
    evaluation: Evaluation = Evaluation()
    growth: Growth = Growth()
    joined: Tuple[Member, ...] = ()  # slots of `terms.joinable` that have joined, without their tasks
    queue: QueueState = QueueState()
    last_lost_at: float = 0.0  # when a connected host was last lost
    isolated: bool = False
    start_delay_s: float = 0.0
    result: Optional[JobResult] = None


def _fence_s(terms: JobTerms) -> float:
    return BEAT_FRACTION * terms.link_timeout_s + defaults.KILL_AFTER_FAILURE_S + _KILL_S


def form_gang(terms: JobTerms, local_slot: str, now: float, term: int = 1) -> Gang:
    """Return a gang in its first attempt, before any status was received."""
    members = _members(terms, initial_assignments(terms.slots), {})
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
    return _end_attempt(gang, end, now)


def receive_status(gang: Gang, report: SlotStatus, now: float) -> Gang:
    """Update the gang with the status of a slot."""
    if gang.result is not None or all(member.slot != report.slot for member in gang.terms.slots):
        return gang
    if report.attempt < _status_of(gang, report.slot).attempt:
        gang = mark_lost(gang, report.slot, "another agent replaced it", now)
    is_new = report.preempted and not _is_preempted(gang, report.slot)
    is_leaving = report.leaving and report.slot not in gang.leaving
    is_planned = report.window_start > 0 and report.window_start != _status_of(gang, report.slot).window_start
    is_eventful = report.exit is not None or bool(report.reason) or report.preempted
    gang = gang._replace(
        statuses={**gang.statuses, report.slot: report},
        eventful=gang.eventful | {report.slot} if is_eventful else gang.eventful - {report.slot},
        leaving=gang.leaving | {report.slot} if report.leaving else gang.leaving - {report.slot},
        connected=gang.connected | {report.slot},
        snapshot=gang.snapshot if gang.stage in _FIXED_CHECKPOINT_STAGES else newest(gang.snapshot, report.snapshot),
    )
    if report.slot in gang.terms.joinable:
        others = tuple(member for member in gang.joined if member.slot != report.slot)
        gang = gang._replace(joined=(*others, Member(report.slot, "", report.address, 0, report.link_port)))
    if is_leaving:
        notice = f"{_display_name(gang, report.slot)} is stopped for maintenance within an hour{_substitution(gang)}"
        gang = gang._replace(leaving_since=gang.snapshot, notices=(*gang.notices, notice))
    elif is_planned:
        gang = gang._replace(notices=(*gang.notices, _maintenance_warning(gang, report)))
    if is_new:
        gang = gang._replace(notices=(*gang.notices, _preemption_warning(gang, report.slot)))
    if report.stop_grace_s is not None:
        gang = _apply_stop_request(gang, report.stop_grace_s, now)
    return advance(gang, now)


def mark_lost(gang: Gang, slot: str, reason: str, now: float) -> Gang:
    """Mark a slot as lost: its agent is gone or was silent for too long. `reason` is a clause that says which."""
    if gang.result is not None or slot == gang.local_slot:
        return gang
    message = f"{_describe_slot(gang, slot)} was lost: {reason}"
    lost = gang.lost
    is_needed = slot in _assigned_slots(gang) and gang.stage is not Stage.QUEUE  # where it has time to come back
    if is_needed and slot not in lost and not _has_ended(gang, slot):
        lost = {**lost, slot: message}
        gang = _shorten_stop(gang)
    fenced_until = now + _fence_s(gang.terms)
    last_lost_at = now if slot in gang.connected else gang.last_lost_at
    gang = gang._replace(
        connected=gang.connected - {slot}, lost=lost, fenced_until=fenced_until, last_lost_at=last_lost_at
    )
    gang = gang._replace(growth=gang.growth._replace(rejected=gang.growth.rejected - {slot}))
    return advance(gang, now)


def _shorten_stop(gang: Gang) -> Gang:
    """Shorten the end of an attempt for growth: a lost slot may lead the next attempt already.

    A new leader waits only for tasks that end after a failure, see `_fence_s`. The checkpoint is complete here.
    """
    if gang.stage is not Stage.STOP or not _is_growth(gang.end):
        return gang
    return gang._replace(grace_s=min(gang.grace_s, defaults.KILL_AFTER_FAILURE_S))


def request_stop(gang: Gang, grace_s: float, now: float) -> Gang:
    """End the job on request of a user."""
    return advance(_apply_stop_request(gang, grace_s, now), now)


def advance(gang: Gang, now: float) -> Gang:
    """Return the gang after all transitions that are due by `now`."""
    while True:
        before, gang = gang, _enforce_lifetime(_enforce_job_timeout(gang, now), now)
        gang = _STEPS[gang.stage](gang, now) if gang.stage in _STEPS else gang
        if gang is before:
            return gang


def deadline(gang: Gang, now: float) -> Optional[float]:
    """Return when `advance` is due after `now` if no status arrives, or None."""
    due: List[Optional[float]] = [gang.job_deadline if gang.stage is not Stage.STOP else None]
    if gang.stage is Stage.RESULT:
        return None
    due += _lifetime_deadlines(gang)
    if gang.stage is Stage.QUEUE:
        due.append(gang.began_at + gang.terms.join_timeout_s if _awaits_slots(gang) else None)
    elif gang.stage in (Stage.RESERVE, Stage.LAUNCH):
        due.append(gang.began_at + gang.terms.join_timeout_s)
        due.append(gang.began_at + _HOLDER_TIMEOUT_S)
    elif gang.stage is Stage.CHECK:
        due.append(gang.began_at + CHECK_TIMEOUT_S)
    elif gang.stage is Stage.GO:
        due += [gang.hang.deadline, *_evaluation_deadlines(gang)]
    elif gang.stage is Stage.STOP:
        due.append(_stop_deadline(gang))
    else:
        waits = (0.0, _presence_deadline(gang), gang.began_at + _PREEMPTION_TIMEOUT_S, _give_up_time(gang))
        due += [max(_retry_time(gang), point) for point in waits]
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
        reason=_summarize(end),
        first_failed_slot=end.first_failed_slot,
        preempted=_is_tolerated_preemption(gang),
        grace_s=gang.grace_s,
        ended=_attempt_ended(gang, end) if gang.stage is Stage.WAIT else None,
        notices=list(gang.notices),
        inspection=gang.hang.inspection,
        result=gang.result,
        trained=gang.evaluation.trained_at is not None,
        start_delay_s=gang.start_delay_s,
    )


def _summarize(end: Ending) -> Reason:
    return end.reason._replace(text=end.summary or end.reason.text)


def _attempt_ended(gang: Gang, end: Ending) -> AttemptEnded:
    reason, first = _summarize(end), _display_name(gang, end.first_failed_slot)
    retry_s = round(_retry_time(gang) - gang.began_at, 3)
    ended = AttemptEnded("", gang.attempt, 0.0, first, reason.text, _exits(gang), retry_s)
    return ended._replace(
        preempted=_is_tolerated_preemption(gang),
        first_failed_slot=end.first_failed_slot,
        reason_kind=reason.kind,
        joining=list(_candidates(gang)),
    )


def tolerates_preemption(policy: Policy, preemptions: int) -> bool:
    """Return True if one more loss of a host, after `preemptions` of them, is not a failure of the job."""
    return policy.preemptions < 0 or preemptions < policy.preemptions


def describe_exit(task: str, ended: Exit) -> str:
    """Return ``worker-1 was killed by SIGKILL``, or ``worker-1 exited with code 1``."""
    if ended.signal is None:
        return f"{task} exited with code {ended.code}"
    return f"{task} was killed by {signal_name(ended.signal)}"


# --- state of the slots --------------------------------------------------------------------------------------------


def _assigned_slots(gang: Gang) -> List[str]:
    return [member.slot for member in gang.members]


def _assigned_tasks(gang: Gang) -> List[str]:
    return [member.task for member in gang.members]


def _training_slots(gang: Gang) -> List[str]:
    """Return the slots that train, the chief first."""
    training_tasks = set(trainers(_assigned_tasks(gang)))
    return [member.slot for member in gang.members if member.task in training_tasks]


def _evaluator_slots(gang: Gang) -> List[str]:
    return [member.slot for member in gang.members if is_evaluator(member.task)]


def _required_slots(gang: Gang) -> List[str]:
    """Return the slots whose failure ends the attempt: all, but no evaluators once it runs."""
    if not (gang.started and gang.stage in (Stage.GO, Stage.STOP)):
        return _assigned_slots(gang)
    return [member.slot for member in gang.members if not is_evaluator(member.task)]


def _display_name(gang: Gang, slot: str) -> str:
    """Return the name of a slot in messages to the user: its task, if it has one."""
    return next((member.task for member in gang.members if member.slot == slot), slot)


def _describe_slot(gang: Gang, slot: str) -> str:
    """Return the name with the address: ``ps-0 (10.0.0.4)``."""
    return called([*gang.joined, *gang.terms.slots], slot, _display_name(gang, slot))


def _find_slot(gang: Gang, name: str) -> str:
    return _assignments(gang).get(name, name)


def _status_of(gang: Gang, slot: str) -> SlotStatus:
    """Return the status of a slot in this attempt."""
    report = gang.statuses.get(slot)
    if report is None or report.attempt != gang.attempt:
        return SlotStatus(slot, closed=False)
    return report


def _has_ended(gang: Gang, slot: str) -> bool:
    return _status_of(gang, slot).exit is not None


def _exits(gang: Gang) -> Dict[str, Exit]:
    """Return the exits of the tasks that have ended."""
    exits = {member.task: _status_of(gang, member.slot).exit for member in gang.members}
    return {task: ended for task, ended in exits.items() if ended is not None}


def _unready_slots(gang: Gang) -> List[str]:
    statuses = [_status_of(gang, slot) for slot in _assigned_slots(gang)]
    return [report.slot for report in statuses if not report.held or report.facts is None]


def _members(terms: JobTerms, assignments: Assignments, statuses: Mapping[str, SlotStatus]) -> Tuple[Member, ...]:
    """Return the tasks with the current addresses and ports; another host may have replaced that of a slot."""
    members = []
    by_slot = {member.slot: member for member in terms.slots}
    for task, slot in assignments.items():
        member = by_slot[slot]
        now = statuses.get(slot, SlotStatus(slot))
        address, port, link_port = now.address or member.address, now.port or member.port, now.link_port
        members.append(Member(slot, task, address, port, link_port or member.link_port))
    return tuple(members)


def _assignments(gang: Gang) -> Assignments:
    return {member.task: member.slot for member in gang.members}


def _is_preempted(gang: Gang, slot: str) -> bool:
    report = gang.statuses.get(slot)
    return report is not None and report.preempted


def _continues(gang: Gang) -> bool:
    """Return True if the job survives the loss of one more host."""
    return tolerates_preemption(gang.terms.policy, gang.preemptions) or gang.restarts < gang.terms.policy.restarts


def _substitute(gang: Gang) -> str:
    """Return the slot that can take over from a host that leaves; empty if there is none.

    The loss of the leader ends the attempt in any case, so nothing is gained before if its host leaves.
    """
    if gang.local_slot in gang.leaving:
        return ""
    busy = _assigned_slots(gang)
    free = [slot for slot in sorted(_available_slots(gang)) if slot not in busy and slot not in gang.leaving]
    return free[0] if free and _continues(gang) else ""


def _substitution(gang: Gang) -> str:
    """Return the end of a warning that a host leaves."""
    slot = _substitute(gang)
    return f"; {slot} takes over at the next complete checkpoint" if slot else ""


def _maintenance_warning(gang: Gang, report: SlotStatus) -> str:
    """Return the warning for the user that maintenance of a host is planned."""
    times = [at for at in (report.window_start, report.window_end) if 0 < at < LATEST_S]
    window = " to ".join(time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) for at in times)
    return f"maintenance that stops {_display_name(gang, report.slot)} is planned: {window} UTC"


def _preemption_warning(gang: Gang, slot: str) -> str:
    """Return the warning for the user that the cloud provider is about to take a host."""
    playing = _assigned_slots(gang)
    replacement = next((candidate for candidate in sorted(_available_slots(gang)) if candidate not in playing), "")
    if slot not in playing:
        consequence = "it has no task now"
    elif slot in _evaluator_slots(gang):
        consequence = "training continues without it"
    elif not _continues(gang) or not gang.started:
        consequence = "the job ends with it"
    else:
        consequence = f"{replacement} replaces it" if replacement else "the job continues when it is replaced"
    return f"{_display_name(gang, slot)} is being preempted; {consequence}"


def _known_slots(gang: Gang) -> List[str]:
    """Return all slots except those that have not joined yet."""
    joined = {member.slot for member in gang.joined}
    return [member.slot for member in gang.terms.slots if member.address or member.slot in joined]


def _available_slots(gang: Gang) -> List[str]:
    """Return the slots that can take part in the next attempt: connected, closed, and not being preempted."""
    statuses = [gang.statuses.get(member.slot) for member in gang.terms.slots if member.slot in gang.connected]
    return [status.slot for status in statuses if status is not None and status.closed and not status.preempted]


def _checkpoint_holders(gang: Gang) -> List[str]:
    """Return the slots that hold the newest checkpoint."""
    return [slot for slot in sorted(gang.connected) if gang.statuses[slot].snapshot == gang.snapshot]


def _find_preemption(gang: Gang) -> Optional[Ending]:
    """Return the end of an attempt that loses a host to preemption, or None."""
    for slot in _required_slots(gang):
        if _is_preempted(gang, slot) and _status_of(gang, slot).exit != Exit(code=0):
            return Ending(
                Outcome.FAILED,
                slot,
                Reason(f"{_describe_slot(gang, slot)} was preempted", ReasonKind.PREEMPTED),
                host_lost=True,
            )
    return None


def _find_failure(gang: Gang) -> Optional[Ending]:
    """Return the first failure among the tasks and their hosts, or None."""
    if not (gang.eventful or gang.lost):  # the usual case, which a leader of many hosts meets at each message
        return None
    preemption = _find_preemption(gang)
    if preemption is not None:
        return preemption
    required = _required_slots(gang)
    for slot in required:
        failed = _task_failure(gang, slot)
        if failed is not None:
            return failed
    for slot, reason in gang.lost.items():
        if slot in required:
            return Ending(Outcome.FAILED, slot, Reason(reason, ReasonKind.HOST_LOST), host_lost=True)
    return None


def _task_failure(gang: Gang, slot: str) -> Optional[Ending]:
    """Return how the task of a slot failed, or None if it did not."""
    report = _status_of(gang, slot)
    if report.reason and (report.exit is not None or report.closed):
        return Ending(Outcome.FAILED, slot, report.reason, report.exit)
    if report.exit is None or (gang.stage is Stage.GO and report.exit.code == 0):
        return None
    name = _display_name(gang, slot)
    if gang.stage is not Stage.GO:
        return Ending(Outcome.FAILED, slot, Reason(f"{name} ended before the start"), report.exit)
    kind = ReasonKind.OTHER if report.exit.signal is None else ReasonKind.KILLED
    return Ending(Outcome.FAILED, slot, Reason(describe_exit(name, report.exit), kind), report.exit)


# --- stages --------------------------------------------------------------------------------------------------------


def _enter(gang: Gang, stage: Stage, now: float) -> Gang:
    if gang.stage in _FIXED_CHECKPOINT_STAGES and stage not in _FIXED_CHECKPOINT_STAGES:
        held = [gang.statuses[slot].snapshot for slot in gang.connected]
        gang = gang._replace(snapshot=newest(gang.snapshot, *held))
    return gang._replace(stage=stage, began_at=now)


def _enforce_job_timeout(gang: Gang, now: float) -> Gang:
    late = gang.job_deadline is not None and now >= gang.job_deadline
    if not late or gang.stage in (Stage.STOP, Stage.RESULT):
        return gang
    if gang.evaluation.trained_at is not None:
        return _end_attempt(gang, Ending(Outcome.SUCCEEDED), now)
    text = f"the job ran longer than {gang.terms.policy.timeout_s:g} s (--timeout)"
    return _end_attempt(gang, Ending(Outcome.FAILED, "", Reason(text, ReasonKind.TIMEOUT), final=True), now)


# --- lifetime of the hosts -----------------------------------------------------------------------------------------


def _update_lifetime(gang: Gang) -> Gang:
    """Return the gang with the end of the lifetime that ends first among those of the hosts that it requires.

    Spares do not count, nor do evaluators, without which training continues.
    """
    reports = [gang.statuses[slot] for slot in _required_slots(gang) if slot in gang.connected]
    earliest = min((report.end_at for report in reports if report.end_at is not None), default=None)
    return gang if earliest == gang.lifetime_end else gang._replace(lifetime_end=earliest)


def _last_moment(gang: Gang) -> Optional[float]:
    """Return when the tasks must be ended, so that their last checkpoint is copied by the end of the lifetime."""
    return None if gang.lifetime_end is None else gang.lifetime_end - gang.terms.grace_s - defaults.LIFETIME_SAVE_S


def _lifetime_deadlines(gang: Gang) -> List[Optional[float]]:
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


def _enforce_lifetime(gang: Gang, now: float) -> Gang:
    """Warn of the end of the hosts' lifetime; end the job in time to copy its last checkpoint to all hosts."""
    gang = _update_lifetime(gang)
    last = _last_moment(gang)
    if last is None or gang.stage in (Stage.STOP, Stage.RESULT) or now < last - defaults.LIFETIME_WARN_S:
        return gang
    if now >= last:
        over = Ending(Outcome.FAILED, "", Reason(_LIFETIME_OVER, ReasonKind.LIFETIME), final=True)
        return _end_attempt(gang, over if gang.evaluation.trained_at is None else Ending(Outcome.SUCCEEDED), now)
    if _is_warned(gang):
        return gang
    minutes = max(1, round((last - now) / _MINUTE_S))
    notice = f"the lifetime of the hosts ends: the job is stopped in {minutes} min; fleet extend gives it more time"
    return gang._replace(warned_of=gang.lifetime_end, notices=(*gang.notices, notice))


def _watch_for_idleness(gang: Gang, now: float) -> Gang:
    """End the job if none of its tasks has done anything for the idle timeout of the hosts, which power off later."""
    limit_s = gang.terms.policy.idle_timeout_s
    inactive = [status.inactive_s for status in _running_statuses(gang, _assigned_slots(gang))]
    if limit_s <= 0 or not inactive:
        return gang
    active_at = max(
        gang.active_at, gang.began_at, now - min(inactive)
    )  # tasks that have ended since were active, too
    if active_at > gang.active_at:
        gang = gang._replace(active_at=active_at)
    if now - active_at < limit_s:
        return gang
    text = f"no task was active for {limit_s / _MINUTE_S:g} min (--idle-timeout of the hosts)"
    return _end_attempt(gang, Ending(Outcome.FAILED, "", Reason(text, ReasonKind.LIFETIME), final=True), now)


def _saved_by(gang: Gang) -> float:
    """Return when the result is recorded, whatever is still being copied: the hosts power off soon."""
    copied_by = gang.ended_at + gang.grace_s + defaults.LIFETIME_SAVE_S
    return (copied_by if gang.lifetime_end is None else min(copied_by, gang.lifetime_end)) - _SAVED_S


def _saves(gang: Gang, now: float) -> bool:
    """Return True while the last checkpoint is being copied because the hosts power off soon."""
    if gang.end is None or gang.end.reason.kind is not ReasonKind.LIFETIME or now >= _saved_by(gang):
        return False
    reports = [gang.statuses[slot] for slot in gang.connected if slot in gang.statuses]
    is_copied = any(report.source is not None for report in reports)
    return is_copied and any(report.snapshot != gang.snapshot for report in reports)


def _apply_stop_request(gang: Gang, grace_s: float, now: float) -> Gang:
    if gang.stage is Stage.RESULT or (gang.end is not None and gang.end.outcome is Outcome.CANCELLED):
        return gang
    end = Ending(Outcome.CANCELLED, "", Reason("stopped on request"))
    if gang.stage is Stage.STOP:  # it is ending and will not restart
        failed = gang.end is not None and gang.end.outcome is Outcome.FAILED and not _should_restart(gang)
        return gang if failed else gang._replace(end=end)
    return _end_attempt(gang, end, now, grace_s)


def _end_attempt(gang: Gang, end: Ending, now: float, grace_s: Optional[float] = None) -> Gang:
    if _fails_by_growth(gang, end):
        gang, end = _reject(gang, end)
    if grace_s is None:
        hopeless = end.outcome is Outcome.FAILED and not end.final and not _is_growth(end)
        is_taken = _is_preempted(gang, end.first_failed_slot) or end.first_failed_slot in gang.leaving
        longest_s = defaults.KILL_AFTER_PREEMPTION_S if is_taken else defaults.KILL_AFTER_FAILURE_S
        grace_s = min(gang.terms.grace_s, longest_s) if hopeless else gang.terms.grace_s
    return _enter(gang._replace(end=end, ended_at=now, grace_s=grace_s), Stage.STOP, now)


def _advance_start(gang: Gang, now: float) -> Gang:
    failure = _find_failure(gang)
    if failure is not None:
        is_final = not gang.started and (gang.stage is not Stage.RESERVE or gang.attempt == 1)
        return _end_attempt(gang, failure._replace(final=is_final), now)
    return _START_STEPS[gang.stage](gang, now)


def _awaits_slots(gang: Gang) -> bool:
    """Return True if a queued job waits for slots, which has a deadline, and not for the end of an earlier job."""
    return not gang.queue.gathered or gang.queue.is_turn


def _advance_queue(gang: Gang, now: float) -> Gang:
    assigned = _assigned_slots(gang)
    missing = [slot for slot in assigned if slot not in gang.connected]
    if not missing and not gang.queue.gathered:
        gang = gang._replace(queue=gang.queue._replace(gathered=True))
    is_turn = not any(gang.statuses[slot].queued for slot in assigned if slot in gang.connected)
    if not missing and is_turn:
        return _enter(gang, Stage.RESERVE, now)
    if is_turn != gang.queue.is_turn:
        gang = gang._replace(queue=gang.queue._replace(is_turn=is_turn), began_at=now)
    return _enforce_join_timeout(gang, missing, now) if missing and _awaits_slots(gang) else gang


def _advance_reserve(gang: Gang, now: float) -> Gang:
    ports = {slot: _status_of(gang, slot).port for slot in _assigned_slots(gang)}
    if not all(ports.values()):
        return _enforce_join_timeout(gang, [slot for slot, port in ports.items() if not port], now)
    if _awaits_resumption(gang):
        if now < gang.began_at + gang.terms.join_timeout_s:
            return gang
        reason = Reason("no host reports the checkpoint from which the job continues")
        return _end_attempt(gang, Ending(Outcome.FAILED, "", reason, final=True), now)
    if gang.snapshot is not None and not _checkpoint_holders(gang):
        if now < gang.began_at + _HOLDER_TIMEOUT_S:
            return gang
        gang = _fall_back_to_older_checkpoint(gang)
    return _enter(gang._replace(members=_members(gang.terms, _assignments(gang), gang.statuses)), Stage.LAUNCH, now)


def _awaits_resumption(gang: Gang) -> bool:
    """Return True until a slot has reported the checkpoint from which the job continues."""
    resume, snapshot = gang.terms.resume, gang.snapshot
    return resume is not None and (snapshot is None or (snapshot.attempt, snapshot.number) < resume)


def _fall_back_to_older_checkpoint(gang: Gang) -> Gang:
    """Use the newest copied checkpoint if the newest one was lost with its host."""
    left = newest(*(gang.statuses[slot].snapshot for slot in gang.connected))
    if left is None:
        return gang
    notice = (
        f"attempt {gang.attempt} starts from an earlier checkpoint: the newest one was lost with its host before it "
        "was copied"
    )
    return gang._replace(snapshot=left, notices=(*gang.notices, notice))


def _advance_launch(gang: Gang, now: float) -> Gang:
    missing = _unready_slots(gang)
    return _enforce_join_timeout(gang, missing, now) if missing else _enter(gang, Stage.CHECK, now)


def _enforce_join_timeout(gang: Gang, missing: List[str], now: float) -> Gang:
    if now < gang.began_at + gang.terms.join_timeout_s:
        return gang
    names = ", ".join(_describe_slot(gang, slot) for slot in missing)
    text = f"{names} did not join within {gang.terms.join_timeout_s:g} s; nothing was started"
    if gang.started:
        text = f"{names} did not join attempt {gang.attempt} within {gang.terms.join_timeout_s:g} s"
    lost = {slot: text for slot in missing if slot not in gang.connected}
    gang = gang._replace(lost={**gang.lost, **lost})
    first = next(iter(lost), missing[0])
    reason = Reason(text, ReasonKind.NOT_JOINED)
    return _end_attempt(
        gang, Ending(Outcome.FAILED, first, reason, final=not gang.started, host_lost=bool(lost)), now
    )


def _advance_check(gang: Gang, now: float) -> Gang:
    probe_results = {slot: _status_of(gang, slot).probe_results for slot in _assigned_slots(gang)}
    if any(results is None for results in probe_results.values()) and now < gang.began_at + CHECK_TIMEOUT_S:
        return gang
    names = {slot: task for task, slot in _assignments(gang).items()}
    pairs = {
        (names[prober], names.get(slot, slot)): error
        for prober, results in probe_results.items()
        for slot, error in (results or {}).items()
    }
    facts = {
        names[slot]: slot_facts
        for slot in _assigned_slots(gang)
        if (slot_facts := _status_of(gang, slot).facts) is not None
    }
    verdict = readiness.verdict(gang.members, facts, pairs)
    if verdict.problems:
        end = Ending(
            Outcome.FAILED,
            _find_slot(gang, verdict.first_failed_task),
            Reason("\n".join(verdict.problems), verdict.kind),
            final=not gang.started,
            summary=NOT_READY,
        )
        return _end_attempt(gang, end, now)
    timeout_s = gang.terms.policy.timeout_s
    job_deadline = now + timeout_s if timeout_s > 0 and gang.job_deadline is None else gang.job_deadline
    gang = gang._replace(started=True, job_deadline=job_deadline, notices=(*gang.notices, *verdict.warnings))
    gang = gang._replace(growth=gang.growth._replace(trial=frozenset()))
    delay_s = start_delay_s(len(gang.members), now - gang.began_at)
    return _enter(gang._replace(start_delay_s=delay_s), Stage.GO, now)


def _advance_go(gang: Gang, now: float) -> Gang:
    gang = _drop_failed_evaluators(gang)
    if gang.evaluation.trained_at is None:
        failure = _find_failure(gang)
        if failure is not None:
            return _end_attempt(gang, failure, now)
        if not _has_succeeded(gang):
            gang = _watch_for_idleness(gang, now)
            grown = _watch_for_departure(_watch_for_growth(gang, now), now) if gang.stage is Stage.GO else gang
            return _watch_for_hang(grown, now) if grown.stage is Stage.GO else grown
        gang = gang._replace(evaluation=gang.evaluation._replace(trained_at=now))
    return _advance_evaluation(gang, now)


def _watch_for_departure(gang: Gang, now: float) -> Gang:
    """End the attempt at a checkpoint if a host is stopped soon and another one can take over."""
    if gang.stage is not Stage.GO or not gang.leaving:
        return gang
    leaving = [slot for slot in _required_slots(gang) if slot in gang.leaving and not _has_ended(gang, slot)]
    snapshot = gang.snapshot
    is_fresh = snapshot is not None and snapshot.attempt == gang.attempt and newer(snapshot, gang.leaving_since)
    if not leaving or not is_fresh or not _substitute(gang):
        return gang
    reason = Reason(f"{_describe_slot(gang, leaving[0])} is stopped for maintenance soon", ReasonKind.PREEMPTED)
    return _end_attempt(gang, Ending(Outcome.FAILED, leaving[0], reason, host_lost=True), now)


# --- growth --------------------------------------------------------------------------------------------------------


def _is_growth(end: Optional[Ending]) -> bool:
    return end is not None and end.reason.kind is ReasonKind.GROWTH


def _candidates(gang: Gang) -> Tuple[str, ...]:
    """Return the slots that join in the next attempt."""
    if not gang.terms.policy.max_workers:
        return ()
    busy = {*_assigned_slots(gang), *gang.growth.rejected, *gang.leaving}
    return growth.choose_candidates(
        [slot for slot in _available_slots(gang) if slot not in busy],
        workers=count_workers(_assigned_tasks(gang)),
        max_workers=gang.terms.policy.max_workers,
        spares=gang.terms.spares,
    )


def _watch_for_growth(gang: Gang, now: float) -> Gang:
    """End the attempt at a checkpoint if new hosts have joined, unless a task has ended already."""
    gang = _reject_misfits(gang)
    before, candidates = gang.growth.candidates, _candidates(gang)
    if candidates != before:
        gang = gang._replace(growth=growth.update(gang.growth, candidates, gang.snapshot))
        new = [_describe_slot(gang, slot) for slot in candidates if slot not in before]
        clause = "" if gang.snapshot is not None else ", and this job has saved none yet"
        notices = [f"{name} joins at the next complete checkpoint{clause}" for name in new]
        gang = gang._replace(notices=(*gang.notices, *notices))
    if not growth.is_due(gang.growth, gang.snapshot, gang.attempt) or any(
        _has_ended(gang, slot) for slot in _training_slots(gang)
    ):
        return gang
    workers = count_workers(_assigned_tasks(gang)) + len(candidates)
    names = [_describe_slot(gang, slot) for slot in candidates]
    return _end_attempt(gang, Ending(Outcome.FAILED, reason=growth.describe_joining(names, workers)), now)


def _reject_misfits(gang: Gang) -> Gang:
    """Leave out new hosts whose versions, GPUs, or disk do not fit, before the job is interrupted for them."""
    candidates = _candidates(gang)
    if not candidates:
        return gang
    reported = [(member, gang.statuses.get(member.slot, SlotStatus(member.slot)).facts) for member in gang.members]
    members = [member for member, facts in reported if facts is not None]
    facts_by_task = {member.task: facts for member, facts in reported if facts is not None}
    task = f"worker-{count_workers(_assigned_tasks(gang))}"
    for slot in candidates:
        facts = gang.statuses[slot].facts
        if slot in gang.growth.candidates or facts is None:
            continue
        joining = Member(slot, task, gang.statuses[slot].address, 0, 0)
        problems = growth.misfits(members, joining, {**facts_by_task, task: facts})
        if problems:
            state = gang.growth._replace(rejected=gang.growth.rejected | {slot})
            notice = f"{_describe_slot(gang, slot)} does not join: {'; '.join(problems)}"
            gang = gang._replace(growth=state, notices=(*gang.notices, notice))
    return gang


def _fails_by_growth(gang: Gang, end: Ending) -> bool:
    """Return True if an attempt with new hosts fails before user code runs in it, unless another host was lost."""
    trial = gang.growth.trial if gang.stage in _START_STEPS else frozenset()
    if not trial or end.outcome is not Outcome.FAILED or end.final:
        return False
    return not end.host_lost or end.first_failed_slot in trial


def _reject(gang: Gang, end: Ending) -> Tuple[Gang, Ending]:
    """Leave out the new hosts of this attempt, whose failure is not one of the job."""
    trial = gang.growth.trial
    reason = growth.describe_rejection(_summarize(end), [_display_name(gang, slot) for slot in sorted(trial)])
    state = gang.growth._replace(trial=frozenset(), rejected=gang.growth.rejected | trial)
    gang = gang._replace(growth=state)
    if end.summary:
        gang = gang._replace(notices=(*gang.notices, "; ".join(end.reason.text.splitlines())))
    return gang, Ending(Outcome.FAILED, reason=reason)


def _decisive_slots(gang: Gang) -> List[str]:
    """Return the slots whose success the success of the job depends on."""
    return _training_slots(gang)[:1] if gang.terms.policy.success is SuccessPolicy.CHIEF else _training_slots(gang)


def _has_succeeded(gang: Gang) -> bool:
    return bool(gang.eventful) and all(_has_ended(gang, slot) for slot in _decisive_slots(gang))


def _drop_failed_evaluators(gang: Gang) -> Gang:
    """Report failed evaluators. No other task waits for them, so training continues."""
    for slot in _evaluator_slots(gang):
        failed = _task_failure(gang, slot)
        reason = failed.reason.text if failed is not None else gang.lost.get(slot, "")
        if reason and slot not in gang.evaluation.dropped:
            notice = f"{reason}; training continues without it"
            evaluation = gang.evaluation._replace(dropped=gang.evaluation.dropped | {slot})
            gang = gang._replace(evaluation=evaluation, notices=(*gang.notices, notice))
    return gang


def _advance_evaluation(gang: Gang, now: float) -> Gang:
    """Let evaluators evaluate the last checkpoint after training has ended."""
    unfinished = [
        slot for slot in _evaluator_slots(gang) if not _has_ended(gang, slot) and slot not in gang.evaluation.dropped
    ]
    statuses = [_status_of(gang, slot) for slot in unfinished]
    if gang.evaluation.last_checkpoint_at is None and _has_last_checkpoint(gang, statuses):
        gang = gang._replace(evaluation=gang.evaluation._replace(last_checkpoint_at=now))
    late_at, idle_at = _evaluation_deadlines(gang)
    idle = all(min(status.quiet_s, status.idle_s) >= EVALUATION_IDLE_S for status in statuses)
    late = late_at is not None and now >= late_at
    if not statuses or late or (idle and idle_at is not None and now >= idle_at):
        return _end_attempt(gang, Ending(Outcome.SUCCEEDED), now)
    return gang


def _has_last_checkpoint(gang: Gang, statuses: List[SlotStatus]) -> bool:
    if not all(_status_of(gang, slot).closed for slot in _decisive_slots(gang)):
        return False
    is_copied = any(report.source is not None for report in gang.statuses.values())
    return not is_copied or all(report.snapshot == gang.snapshot for report in statuses)


def _evaluation_deadlines(gang: Gang) -> Tuple[Optional[float], Optional[float]]:
    """Return when evaluators are stopped at the latest, and when they are stopped if they are idle."""
    trained_at, last_checkpoint_at, _ = gang.evaluation
    latest = trained_at + EVALUATION_S if trained_at is not None else None
    idle = last_checkpoint_at + EVALUATION_IDLE_S if last_checkpoint_at is not None else None
    return latest, idle


def _advance_stop(gang: Gang, now: float) -> Gang:
    unfinished = [
        slot for slot in _assigned_slots(gang) if slot not in gang.lost and not _status_of(gang, slot).closed
    ]
    if (unfinished and now < _stop_deadline(gang)) or (not unfinished and _saves(gang, now)):
        return gang
    unheard_peers = {slot: f"{_describe_slot(gang, slot)} did not answer" for slot in unfinished}
    gang = gang._replace(lost={**gang.lost, **unheard_peers}, end=_first_cause(gang))
    return _enter(gang, Stage.WAIT, now) if _should_restart(gang) else _finish(gang, now)


def _stop_deadline(gang: Gang) -> float:
    return gang.began_at + gang.grace_s + max(STOP_MARGIN_S, gang.terms.link_timeout_s + 1.0)


def _first_cause(gang: Gang) -> Optional[Ending]:
    """Return the end with its first cause: peers of a lost host may fail before the loss is known."""
    end = gang.end
    if end is None or end.outcome is not Outcome.FAILED or end.final or end.host_lost:
        return end
    preemption = _find_preemption(gang)
    if preemption is not None:
        return preemption
    follows = end.summary == NOT_READY or (end.exit is not None and end.exit.code is not None) or _is_growth(end)
    for slot, reason in gang.lost.items() if follows else ():
        if slot in _evaluator_slots(gang) or slot in gang.growth.rejected:
            continue
        return Ending(Outcome.FAILED, slot, Reason(reason, ReasonKind.HOST_LOST), host_lost=True)
    return end


def _is_tolerated_preemption(gang: Gang) -> bool:
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
    if _is_tolerated_preemption(gang) or _is_growth(end):
        return True
    if policy.restart is RestartPolicy.NEVER or gang.restarts >= policy.restarts:
        return False
    code = end.exit.code if end.exit is not None else None
    permanent = code is not None and code < 128 and code != RESTART_EXIT_CODE
    return not (permanent and policy.restart is RestartPolicy.EXIT_CODE)


def _backoff_s(gang: Gang) -> float:
    if _is_growth(gang.end):
        return 0.0
    return min(defaults.LONGEST_BACKOFF_S, gang.terms.policy.backoff_s * 2.0 ** min(gang.restarts, 20))


def _retry_time(gang: Gang) -> float:
    """Return when the next attempt may begin: the back-off runs while the tasks of this one are stopped."""
    return max(gang.ended_at + _backoff_s(gang), gang.began_at + _REPORT_PAUSE_S, gang.fenced_until)


def _advance_wait(gang: Gang, now: float) -> Gang:
    host_lost = [slot for slot in sorted(gang.connected) if _is_preempted(gang, slot)]
    if host_lost and len(host_lost) == len(gang.connected) and now >= _presence_deadline(gang):
        return _give_up(gang, "no other host is left", now)
    if now < _retry_time(gang) or (
        now < gang.began_at + _PREEMPTION_TIMEOUT_S and _must_await_preempted(gang, host_lost)
    ):
        return gang
    before, idle = _assignments(gang), [slot for slot in _available_slots(gang) if slot not in gang.growth.rejected]
    tasks, whole = _required_tasks(gang), _has_quorum(gang)
    assignments = reassign(tasks, before, _prefer_staying(gang, idle, len(tasks)), fewest=None) if whole else None
    if assignments is None and now >= _give_up_time(gang):
        assignments = reassign(tasks, before, idle, fewest=_fewest_workers(gang)) if whole else None
        if assignments is None:
            return _give_up(gang, f"it was not replaced within {gang.terms.policy.host_timeout_s:g} s", now)
    elif assignments is not None:
        assignments = _with_candidates(gang, assignments, idle)
    return gang if assignments is None else _begin_attempt(gang, assignments, now)


def _prefer_staying(gang: Gang, idle: List[str], count: int) -> List[str]:
    """Return the slots for `count` tasks, without those whose hosts leave as far as others can take over.

    The last tasks stay on hosts that leave if not all of them can be replaced.
    """
    assigned = _assigned_slots(gang)
    leaving = [slot for slot in idle if slot in gang.leaving and slot not in assigned]
    leaving += [slot for slot in assigned if slot in gang.leaving and slot in idle]
    replaced = leaving[: max(0, len(idle) - count)]
    return [slot for slot in idle if slot not in replaced]


def _required_tasks(gang: Gang) -> List[str]:
    """Return the tasks that the next attempt must have: those of the job, and the workers that joined since."""
    kept = [task for task, slot in _assignments(gang).items() if slot not in gang.growth.rejected]
    return with_workers(gang.terms.tasks, count_workers(kept))


def _has_quorum(gang: Gang) -> bool:
    """Return False if the other part of a divided network could continue the job, too.

    After a growth, two parts can have enough slots for all tasks, so the one with more than half of them continues.
    """
    policy = gang.terms.policy
    if policy.min_workers or not policy.max_workers or not gang.joined:
        return True
    return 2 * len(gang.connected) > len(_known_slots(gang))


def _fewest_workers(gang: Gang) -> int:
    """Return the minimum number of workers of the next attempt.

    By default all that the job started with, and if it has grown, more than half of the last ones, so that two parts
    of a divided network never both continue.
    """
    policy, tasks = gang.terms.policy, gang.terms.tasks
    if policy.min_workers or not policy.max_workers:
        return policy.min_workers or len(tasks)
    return max(count_workers(tasks), 1 + count_workers(_assigned_tasks(gang)) // 2)


def _with_candidates(gang: Gang, assignments: Assignments, idle: List[str]) -> Assignments:
    """Return the assignments of the next attempt, with further workers in the slots that are left."""
    policy, workers = gang.terms.policy, count_workers(assignments)
    free = [slot for slot in idle if slot not in assignments.values() and slot not in gang.leaving]
    joining = growth.choose_candidates(
        free, workers=workers, max_workers=policy.max_workers, spares=gang.terms.spares
    )
    if not joining:
        return assignments
    tasks = with_workers(list(assignments), workers + len(joining))
    return reassign(tasks, assignments, [*assignments.values(), *joining], fewest=None) or assignments


def _give_up_time(gang: Gang) -> float:
    """Return when a missing host is given up: a host lost during the back-off has all of the host timeout, too."""
    last_lost_at = max(gang.began_at, gang.last_lost_at)
    return max(_retry_time(gang), last_lost_at + gang.terms.policy.host_timeout_s)


def _presence_deadline(gang: Gang) -> float:
    """Return the time after which a slot that is not connected counts as absent."""
    all_here = len(gang.connected) == len(_known_slots(gang))
    return gang.began_at + (0.0 if all_here else gang.terms.link_timeout_s)


def _must_await_preempted(gang: Gang, host_lost: List[str]) -> bool:
    """Return True if a preempted host leads or holds the only copies, so others must copy or take over first."""
    return gang.local_slot in host_lost or (
        bool(holders := _checkpoint_holders(gang)) and all(slot in host_lost for slot in holders)
    )


def _give_up(gang: Gang, why: str, now: float) -> Gang:
    """End a job that cannot start another attempt; `why` completes the reason."""
    end = gang.end
    missing = [slot for slot in _assigned_slots(gang) if slot not in gang.connected]
    if _is_growth(end):
        first = next(iter(missing), gang.members[0].slot)
        reason = Reason(f"{_describe_slot(gang, first)} was lost", ReasonKind.HOST_LOST)
        end, missing = Ending(Outcome.FAILED, first, reason, host_lost=True), missing[1:]
    if end is not None and end.host_lost:
        later = [] if end.first_failed_slot in missing else missing
        addition = f"; {_describe_slot(gang, later[0])} was lost after that" if later else ""
        reason = end.reason._replace(text=f"{end.reason.text}{addition}, and {why}")
        gang = gang._replace(end=end._replace(reason=reason))
    return _finish(gang, now)


def _begin_attempt(gang: Gang, assignments: Assignments, now: float) -> Gang:
    attempt = 1 + max(gang.attempt, *(report.attempt for report in gang.statuses.values()))
    changes = _describe_changes(_assignments(gang), assignments)
    survived, grows = _is_tolerated_preemption(gang), _is_growth(gang.end)
    joined = frozenset(assignments.values()) - frozenset(_assigned_slots(gang))
    has_grown = count_workers(assignments) > count_workers(_assigned_tasks(gang))
    gang = gang._replace(
        attempt=attempt,
        restarts=gang.restarts + (not survived and not grows),
        preemptions=gang.preemptions + survived,
        members=_members(gang.terms, assignments, gang.statuses),
        lost={},
        end=None,
        grace_s=0.0,
        hang=HangWatch(),
        evaluation=Evaluation(),
        growth=Growth(trial=joined if has_grown else frozenset(), rejected=gang.growth.rejected),
        notices=(f"attempt {attempt}: {changes}",) if changes else (),
    )
    return _enter(gang, Stage.RESERVE, now)


def _describe_changes(before: Assignments, after: Assignments) -> str:
    gone = [slot for slot in before.values() if slot not in after.values()]
    new = [slot for task, slot in after.items() if task == slot and task not in before]
    clauses = [f"without slot {', '.join(gone)}"] if gone else []
    clauses += [f"with {', '.join(new)}"] if new else []
    moved = {task: slot for task, slot in after.items() if before.get(task) != slot and slot not in new}
    clauses += [f"{task} runs in slot {slot}" for task, slot in moved.items()]
    return ", ".join(clauses)


def _finish(gang: Gang, now: float) -> Gang:
    end = gang.end or Ending(Outcome.SUCCEEDED)
    result = JobResult(
        gang.terms.job,
        gang.attempt,
        end.outcome,
        0.0,
        _display_name(gang, end.first_failed_slot),
        end.reason.text,
        _exits(gang),
        gang.started,
        isolated=gang.isolated or 2 * len(gang.connected) <= len(_known_slots(gang)),
        reason_kind=end.reason.kind,
    )
    return _enter(gang._replace(result=result), Stage.RESULT, now)


# --- hang detection ------------------------------------------------------------------------------------------------


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


def _running_statuses(gang: Gang, slots: List[str]) -> List[SlotStatus]:
    return [_status_of(gang, slot) for slot in slots if not _has_ended(gang, slot)]


def _is_quiet(gang: Gang, seconds: float) -> bool:
    """Return True if no trainer has produced output for `seconds` and at least one was idle.

    With a coordinator all of them must be idle: workers write nothing, and the coordinator computes nothing.
    """
    running = _running_statuses(gang, _training_slots(gang))
    idle = [status.idle_s >= seconds for status in running]
    is_idle = all(idle) if is_coordinated(_assigned_tasks(gang)) else any(idle)
    return bool(running) and is_idle and all(status.quiet_s >= seconds for status in running)


def _is_start_overdue(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.start_timeout_s
    if (
        limit_s <= 0
        or now < gang.began_at + limit_s
        or any(_status_of(gang, slot).stepped for slot in _training_slots(gang))
    ):
        return False
    return _is_quiet(gang, min(_LONGEST_QUIET_START_S, limit_s / 2))


def _is_hung(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.hang_timeout_s
    return (limit_s > 0 and _is_quiet(gang, limit_s)) or _is_start_overdue(gang, now)


def _evaluate_inspection(gang: Gang, latest: float, now: float) -> Gang:
    inspected_slots = [slot for slot in _assigned_slots(gang) if slot not in _evaluator_slots(gang)]
    running = _running_statuses(gang, inspected_slots)
    inspected = [report for report in running if report.inspected == gang.hang.inspection]
    if len(inspected) < len(running) and now < latest:
        return gang
    policy = gang.terms.policy
    gang = gang._replace(hang=gang.hang._replace(deadline=None, reported=True))
    members = [member for member in gang.members if member.slot in inspected_slots]
    hangs = {_display_name(gang, report.slot): report.hang for report in inspected if report.hang is not None}
    for slot, task in ((member.slot, member.task) for member in members if _has_ended(gang, member.slot)):
        hangs[task] = HangInspection(slot, task, gang.attempt, 0.0, "", "", [])
    first_failed_slot, is_overdue = _find_slot(gang, blocking_task(hangs, members)), _is_start_overdue(gang, now)
    clause = f"no progress for {policy.hang_timeout_s:g} s"
    if is_overdue:
        clause = f"no first step within {policy.start_timeout_s:g} s"
    reason = Reason(f"{clause}: {describe_hang(hangs, members)}", ReasonKind.HANG)
    if is_overdue or policy.on_hang is OnHang.RESTART:
        return _end_attempt(gang, Ending(Outcome.FAILED, first_failed_slot, reason), now)
    return gang._replace(notices=(*gang.notices, reason.text))


_Step: TypeAlias = "Callable[[Gang, float], Gang]"
_START_STEPS: Dict[Stage, _Step] = {
    Stage.QUEUE: _advance_queue,
    Stage.RESERVE: _advance_reserve,
    Stage.LAUNCH: _advance_launch,
    Stage.CHECK: _advance_check,
}
_STEPS: Dict[Stage, _Step] = {
    **dict.fromkeys(_START_STEPS, _advance_start),
    Stage.GO: _advance_go,
    Stage.STOP: _advance_stop,
    Stage.WAIT: _advance_wait,
}
