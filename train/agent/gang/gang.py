"""The rule of the gang, pure: nobody starts before all are ready and reach all, and the first failure ends all.

The leader feeds what it hears, and carries `order` to all slots, its own included. Distributed TensorFlow hangs on a
peer that is missing, and a task that goes on alone trains something else, so there is nothing between all and none;
after a failure all begin again together, with fresh ports, at the newest complete checkpoint.
"""

import signal
from typing import Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang import readiness as gate
from train.agent.gang.assignment import first_cast, is_coordinated, is_evaluator, recast, trainers
from train.agent.gang.hang import waited_for, who_waits
from train.agent.gang.states import Order, Part, Report, Stage
from train.agent.protocol.records import (
    Exit,
    JobResult,
    Member,
    OnHang,
    Outcome,
    Policy,
    RestartPolicy,
    Stalled,
    SuccessPolicy,
)

# Beyond the grace period, for SIGKILL to work and the news to arrive.
STOP_MARGIN_S = 10.0
# After a failure no peer can finish anything together with the others.
FAILURE_GRACE_S = 1.0
# Compute Engine takes a host thirty seconds after its notice, and by then the last checkpoint must have left it.
PREEMPTION_GRACE_S = 20.0
# From the order to check until every agent has told what it found.
CHECK_TIMEOUT_S = 25.0
LONGEST_BACKOFF_S = 60.0
# With which TensorFlow's PreemptionCheckpointHandler ends a task once the checkpoint is written:
# tf.distribute.experimental.TerminationConfig
START_ME_AGAIN = 42
# Beats in a link timeout are so far apart, and as much earlier silence is noticed.
BEAT_PART = 0.2
_KILL_S = 1.0
NOT_READY = "the hosts are not ready for the job"
_LOOK_S = 5.0
_LONGEST_QUIET_START_S = 60.0
_DYING_S = 60.0  # after so long a host that was to be taken has not been
EVALUATION_S = 300.0  # after the end of the training, evaluators may take so long for the last checkpoint
EVALUATION_IDLE_S = 10.0  # one that has it, and has done nothing for so long, has nothing left to evaluate
_HOLDER_S = 5.0  # an agent that has just begun does not yet know which checkpoint its host holds
_FROZEN = (Stage.LAUNCH, Stage.CHECK)  # in these all begin at the same checkpoint


class Terms(NamedTuple):
    """What was agreed on when the job was committed."""

    job: str
    slots: Tuple[Member, ...]
    spares: Tuple[str, ...] = ()
    policy: Policy = Policy()
    grace_s: float = 10.0
    join_timeout_s: float = 60.0
    link_timeout_s: float = 10.0
    assigned: Tuple[str, ...] = ()  # the role of each slot at first, empty for a spare; none: those of their names

    @property
    def first_cast(self) -> Tuple[Part, ...]:
        """Who plays what in the first attempt."""
        return tuple(first_cast(self.slots, self.spares, self.assigned))

    @property
    def roles(self) -> Tuple[str, ...]:
        """All roles of the job."""
        return tuple(part.role for part in self.first_cast)

    @property
    def by_role(self) -> bool:
        """Whether people know the tasks by their roles, not by their slots."""
        return bool(self.assigned)


class End(NamedTuple):
    """Why an attempt ends."""

    outcome: Outcome
    first: str = ""  # slot that failed first
    reason: str = ""
    exit: Optional[Exit] = None
    final: bool = False  # whatever the policy says
    told: str = ""  # to all while they stop, where the reason is long
    taken: bool = False  # the host of `first` is gone, or the cloud is about to take it


class Gang(NamedTuple):
    """What the leader knows of a job; points in time are in seconds by any clock that never goes back."""

    terms: Terms
    me: str
    term: int
    attempt: int
    stage: Stage
    cast: Tuple[Part, ...]
    members: Tuple[Member, ...]
    began_at: float  # of the stage
    restarts: int = 0
    preemptions: int = 0
    present: FrozenSet[str] = frozenset()
    reports: Dict[str, Report] = {}  # noqa: RUF012 - never changed
    lost: Dict[str, str] = {}  # noqa: RUF012 - never changed; slots of the cast, and how, in this attempt
    started: bool = False  # whether any user code ever ran
    went_at: float = 0.0
    ends_at: Optional[float] = None
    end: Optional[End] = None
    grace_s: float = 0.0
    retry_s: float = 0.0
    fenced_until: float = 0.0  # whom we lost has noticed it by then, and ended what it ran
    snapshot: Optional[Snapshot] = None
    notices: Tuple[str, ...] = ()
    look: int = 0
    look_until: Optional[float] = None
    hang_told: bool = False
    trained_at: Optional[float] = None  # when all had ended on whose success that of the job depends
    evaluated_from: Optional[float] = None  # since when evaluators have the last checkpoint
    left_behind: FrozenSet[str] = frozenset()  # evaluators without which the training goes on
    missed_from: float = 0.0  # when a host that was present was last lost
    isolated: bool = False
    result: Optional[JobResult] = None


def _fence_s(terms: Terms) -> float:
    return BEAT_PART * terms.link_timeout_s + FAILURE_GRACE_S + _KILL_S


def form(terms: Terms, me: str, now: float) -> Gang:
    """A gang at its first attempt, of which nobody has been heard yet."""
    cast = terms.first_cast
    return Gang(terms, me, 1, 1, Stage.LAUNCH, cast, _members(terms, cast, {}), now)


def take_over(terms: Terms, last: Order, me: str, now: float, *, end: End, lost: Dict[str, str], term: int) -> Gang:
    """A gang whose leader was lost, led by `me` from now on: the attempt is over, and all are heard anew.

    Args:
        terms: Of the job.
        last: The last order of the leader before.
        me: Our slot.
        now: The time.
        end: Why the attempt ends, if it had not ended yet.
        lost: Slots that are known to be gone, and how.
        term: Ours; later than any before.
    """
    gang = Gang(terms, me, term, last.attempt, Stage.GO, tuple(last.cast), tuple(last.members), now)
    gang = gang._replace(restarts=last.restarts, preemptions=last.preemptions, lost=lost)
    gang = gang._replace(started=last.started, snapshot=last.snapshot)
    if lost:
        gang = gang._replace(fenced_until=now + _fence_s(terms))
    if last.trained and end.outcome is Outcome.FAILED:
        end = End(Outcome.SUCCEEDED)
    elif last.stage is Stage.WAIT or (last.stage is Stage.STOP and last.preempted):
        end = end._replace(reason=last.reason, first=last.first, taken=last.preempted)
    return _end(gang, end, now)


def hear(gang: Gang, report: Report, now: float) -> Gang:
    """A slot told of itself."""
    if gang.result is not None or report.slot not in {member.task for member in gang.terms.slots}:
        return gang
    if report.attempt < _report(gang, report.slot).attempt:
        gang = lose(gang, report.slot, "another agent has taken its place", now)
    is_new = report.preempted and not _is_preempted(gang, report.slot)
    gang = gang._replace(
        reports={**gang.reports, report.slot: report},
        present=gang.present | {report.slot},
        snapshot=gang.snapshot if gang.stage in _FROZEN else newest(gang.snapshot, report.snapshot),
    )
    if is_new:
        gang = gang._replace(notices=(*gang.notices, _warning(gang, report.slot)))
    if report.stop is not None:
        gang = _stop_asked(gang, report.stop, now)
    return advance(gang, now)


def lose(gang: Gang, slot: str, reason: str, now: float) -> Gang:
    """The agent of a slot is gone, or was silent for too long; `reason` is a clause that says which."""
    if gang.result is not None or slot == gang.me:
        return gang
    message = f"{_called(gang, slot)} was lost: {reason}"
    lost = gang.lost
    if slot in _playing(gang) and slot not in lost and not _has_ended(gang, slot):
        lost = {**lost, slot: message}
    fenced_until = now + _fence_s(gang.terms)
    missed_from = now if slot in gang.present else gang.missed_from
    gang = gang._replace(present=gang.present - {slot}, lost=lost, fenced_until=fenced_until, missed_from=missed_from)
    return advance(gang, now)


def stop(gang: Gang, grace_s: float, now: float) -> Gang:
    """Somebody wants the job to end."""
    return advance(_stop_asked(gang, grace_s, now), now)


def advance(gang: Gang, now: float) -> Gang:
    """What has become of the gang by `now`."""
    while True:
        following = _STEPS[gang.stage](_in_time(gang, now), now)
        if following is gang:
            return gang
        gang = following


def deadline(gang: Gang, now: float) -> Optional[float]:
    """When `advance` is due after `now`, even if nothing is heard."""
    due: List[Optional[float]] = [gang.ends_at if gang.stage is not Stage.STOP else None]
    if gang.stage is Stage.RESULT:
        return None
    if gang.stage in (Stage.RESERVE, Stage.LAUNCH):
        due.append(gang.began_at + gang.terms.join_timeout_s)
        due.append(gang.began_at + _HOLDER_S)
    elif gang.stage is Stage.CHECK:
        due.append(gang.began_at + CHECK_TIMEOUT_S)
    elif gang.stage is Stage.GO:
        due += [gang.look_until, *_evaluation_ends(gang)]
    elif gang.stage is Stage.STOP:
        due.append(_stop_deadline(gang))
    else:
        waits = [_retry_at(gang), _alone_at(gang), gang.began_at + _DYING_S, _given_up_at(gang)]
        due += [max(_retry_at(gang), point) for point in waits]
    return min((point for point in due if point is not None and point > now), default=None)


def order(gang: Gang) -> Order:
    """What the leader wants now."""
    end = gang.end or End(Outcome.SUCCEEDED)
    sources = [
        report.source
        for slot, report in sorted(gang.reports.items())
        if slot in gang.present and report.source is not None and report.snapshot == gang.snapshot
    ]
    return Order(
        term=gang.term,
        leader=gang.me,
        attempt=gang.attempt,
        stage=gang.stage,
        cast=list(gang.cast),
        members=list(gang.members),
        restarts=gang.restarts,
        preemptions=gang.preemptions,
        started=gang.started,
        snapshot=gang.snapshot,
        sources=sources if gang.snapshot is not None else [],
        reason=end.told or end.reason,
        first=end.first,
        preempted=_is_survived(gang),
        grace_s=gang.grace_s,
        exits=_exits(gang) if gang.stage is Stage.WAIT else {},
        retry_s=gang.retry_s,
        notices=list(gang.notices),
        look=gang.look,
        result=gang.result,
        by_role=gang.terms.by_role,
        trained=gang.trained_at is not None,
    )


def survives(policy: Policy, preemptions: int) -> bool:
    """Whether one more loss of a host, after so many, is no failure of the job."""
    return policy.preemptions < 0 or preemptions < policy.preemptions


def most_attempts(policy: Policy) -> int:
    """How often a job is started at most; 0: no limit."""
    restarts = 0 if policy.restart is RestartPolicy.NEVER else policy.restarts
    return 0 if policy.preemptions < 0 else 1 + restarts + policy.preemptions


def describe_exit(task: str, ended: Exit) -> str:
    """``worker-1 was killed by SIGKILL``, or ``worker-1 exited with code 1``."""
    if ended.signal is None:
        return f"{task} exited with code {ended.code}"
    try:
        name = signal.Signals(ended.signal).name
    except ValueError:
        name = f"signal {ended.signal}"
    return f"{task} was killed by {name}"


# --- what is known of the slots -----------------------------------------------------------------------------------


def _playing(gang: Gang) -> List[str]:
    return [part.slot for part in gang.cast]


def _roles(gang: Gang) -> List[str]:
    return [part.role for part in gang.cast]


def _training(gang: Gang) -> List[str]:
    """The slots that train, the chief first."""
    wanted = trainers(_roles(gang))
    return [part.slot for part in gang.cast if part.role in wanted]


def _evaluators(gang: Gang) -> List[str]:
    return [part.slot for part in gang.cast if is_evaluator(part.role)]


def _bound(gang: Gang) -> List[str]:
    """The slots whose failure is one of the attempt: once it runs, all but evaluators."""
    beside = _evaluators(gang) if gang.started and gang.stage in (Stage.GO, Stage.STOP) else []
    return [slot for slot in _playing(gang) if slot not in beside]


def _name(gang: Gang, slot: str) -> str:
    """How people know the task of a slot."""
    roles = {part.slot: part.role for part in gang.cast} if gang.terms.by_role else {}
    return roles.get(slot, slot)


def _called(gang: Gang, slot: str) -> str:
    """``ps-0 (10.0.0.4)``."""
    address = next((member.address for member in gang.terms.slots if member.task == slot), "")
    return f"{_name(gang, slot)} ({address})" if address else _name(gang, slot)


def _named_members(gang: Gang) -> Tuple[Member, ...]:
    return tuple(member._replace(task=_name(gang, member.task)) for member in gang.members)


def _slot_of(gang: Gang, name: str) -> str:
    return next((slot for slot in _playing(gang) if _name(gang, slot) == name), name)


def _report(gang: Gang, slot: str) -> Report:
    """What a slot told of this attempt."""
    report = gang.reports.get(slot)
    if report is None or report.attempt != gang.attempt:
        return Report(slot, closed=False)
    return report


def _has_ended(gang: Gang, slot: str) -> bool:
    return _report(gang, slot).exit is not None


def _exits(gang: Gang) -> Dict[str, Exit]:
    found = {slot: _report(gang, slot).exit for slot in _playing(gang)}
    return {slot: ended for slot, ended in found.items() if ended is not None}


def _missing(gang: Gang) -> List[str]:
    reports = [_report(gang, slot) for slot in _playing(gang)]
    return [report.slot for report in reports if not report.held or report.facts is None]


def _members(terms: Terms, cast: Tuple[Part, ...], reports: Mapping[str, Report]) -> Tuple[Member, ...]:
    slots = {member.task: member for member in terms.slots}
    return tuple(_member(slots[part.slot], reports.get(part.slot)) for part in cast)


def _member(known: Member, report: Optional[Report]) -> Member:
    """A slot where it is now: another host may have taken its place."""
    if report is None:
        return known
    return Member(
        known.task, report.address or known.address, report.port or known.port, report.link_port or known.link_port
    )


def _is_preempted(gang: Gang, slot: str) -> bool:
    report = gang.reports.get(slot)
    return report is not None and report.preempted


def _warning(gang: Gang, slot: str) -> str:
    """What the user is told when the cloud is about to take a host."""
    playing = _playing(gang)
    spare = next((one for one in sorted(_idle(gang)) if one not in playing), "")
    goes_on = survives(gang.terms.policy, gang.preemptions) or gang.restarts < gang.terms.policy.restarts
    if slot not in playing:
        then = "it has no task now"
    elif slot in _evaluators(gang):
        then = "training goes on without it"
    elif not goes_on or not gang.started:
        then = "the job ends with it"
    else:
        then = f"{spare} takes its place" if spare else "the job goes on when it is replaced"
    return f"{_name(gang, slot)} is being preempted by Compute Engine; {then}"


def _idle(gang: Gang) -> List[str]:
    """The slots that may play in the next attempt: linked, nothing left of the last one, their hosts not taken."""
    reports = [gang.reports.get(member.task) for member in gang.terms.slots if member.task in gang.present]
    return [one.slot for one in reports if one is not None and one.closed and not one.preempted]


def _holders(gang: Gang) -> List[str]:
    """Who holds the newest checkpoint."""
    return [slot for slot in sorted(gang.present) if gang.reports[slot].snapshot == gang.snapshot]


def _preemption(gang: Gang) -> Optional[End]:
    """The end of an attempt whose host is about to be taken; None where none is."""
    for slot in _bound(gang):
        if _is_preempted(gang, slot) and _report(gang, slot).exit != Exit(code=0):
            return End(Outcome.FAILED, slot, f"{_called(gang, slot)} was preempted", taken=True)
    return None


def _failure(gang: Gang) -> Optional[End]:
    """The first failure among the tasks and their hosts; None while there is none."""
    preemption = _preemption(gang)
    if preemption is not None:
        return preemption
    for slot in _bound(gang):
        failed = _own_failure(gang, slot)
        if failed is not None:
            return failed
    for slot, reason in gang.lost.items():
        if slot in _bound(gang):
            return End(Outcome.FAILED, slot, reason, taken=True)
    return None


def _own_failure(gang: Gang, slot: str) -> Optional[End]:
    """How the task of a slot failed; None where it did not."""
    report, name = _report(gang, slot), _name(gang, slot)
    if report.reason and (report.exit is not None or report.closed):
        return End(Outcome.FAILED, slot, report.reason, report.exit)
    if report.exit is not None and gang.stage is not Stage.GO:
        return End(Outcome.FAILED, slot, f"{name} ended before the start", report.exit)
    if report.exit is not None and report.exit.code != 0:
        return End(Outcome.FAILED, slot, describe_exit(name, report.exit), report.exit)
    return None


# --- the stages ---------------------------------------------------------------------------------------------------


def _enter(gang: Gang, stage: Stage, now: float) -> Gang:
    if gang.stage in _FROZEN and stage not in _FROZEN:
        held = [gang.reports[slot].snapshot for slot in gang.present]
        gang = gang._replace(snapshot=newest(gang.snapshot, *held))
    return gang._replace(stage=stage, began_at=now)


def _in_time(gang: Gang, now: float) -> Gang:
    late = gang.ends_at is not None and now >= gang.ends_at
    if not late or gang.stage in (Stage.STOP, Stage.RESULT):
        return gang
    if gang.trained_at is not None:
        return _end(gang, End(Outcome.SUCCEEDED), now)
    reason = f"the job ran longer than {gang.terms.policy.timeout_s:g} s (--timeout)"
    return _end(gang, End(Outcome.FAILED, "", reason, final=True), now)


def _stop_asked(gang: Gang, grace_s: float, now: float) -> Gang:
    if gang.stage is Stage.RESULT or (gang.end is not None and gang.end.outcome is Outcome.CANCELLED):
        return gang
    end = End(Outcome.CANCELLED, "", "stopped on request")
    if gang.stage is Stage.STOP:  # it ends already, and will not begin again
        failed = gang.end is not None and gang.end.outcome is Outcome.FAILED and not _again(gang)
        return gang if failed else gang._replace(end=end)
    return _end(gang, end, now, grace_s)


def _end(gang: Gang, end: End, now: float, grace_s: Optional[float] = None) -> Gang:
    if grace_s is None:
        hopeless = end.outcome is Outcome.FAILED and not end.final
        longest_s = PREEMPTION_GRACE_S if _is_preempted(gang, end.first) else FAILURE_GRACE_S
        grace_s = min(gang.terms.grace_s, longest_s) if hopeless else gang.terms.grace_s
    return _enter(gang._replace(end=end, grace_s=grace_s, look_until=None), Stage.STOP, now)


def _reserving(gang: Gang, now: float) -> Gang:
    failure = _failure(gang)
    if failure is not None:
        return _end(gang, failure, now)
    ports = {slot: _report(gang, slot).port for slot in _playing(gang)}
    if not all(ports.values()):
        return _not_in_time(gang, [slot for slot, port in ports.items() if not port], now)
    if gang.snapshot is not None and not _holders(gang):
        if now < gang.began_at + _HOLDER_S:
            return gang
        gang = _with_what_is_left(gang)
    return _enter(gang._replace(members=_members(gang.terms, gang.cast, gang.reports)), Stage.LAUNCH, now)


def _with_what_is_left(gang: Gang) -> Gang:
    """Where the newest checkpoint went with its host, the newest of those that others had copied is."""
    left = newest(*(gang.reports[slot].snapshot for slot in gang.present))
    if left is None:
        return gang
    why = "nobody had copied the newest before its host was lost"
    told = f"attempt {gang.attempt} begins at an earlier checkpoint: {why}"
    return gang._replace(snapshot=left, notices=(*gang.notices, told))


def _launching(gang: Gang, now: float) -> Gang:
    failure = _failure(gang)
    if failure is not None:
        return _end(gang, failure._replace(final=not gang.started), now)
    missing = _missing(gang)
    return _not_in_time(gang, missing, now) if missing else _enter(gang, Stage.CHECK, now)


def _not_in_time(gang: Gang, missing: List[str], now: float) -> Gang:
    if now < gang.began_at + gang.terms.join_timeout_s:
        return gang
    names = ", ".join(_called(gang, slot) for slot in missing)
    reason = f"{names} did not join within {gang.terms.join_timeout_s:g} s; nothing was started"
    if gang.started:
        reason = f"{names} did not join attempt {gang.attempt} within {gang.terms.join_timeout_s:g} s"
    lost = {slot: reason for slot in missing if slot not in gang.present}
    gang = gang._replace(lost={**gang.lost, **lost})
    first = next(iter(lost), missing[0])
    return _end(gang, End(Outcome.FAILED, first, reason, final=not gang.started, taken=bool(lost)), now)


def _checking(gang: Gang, now: float) -> Gang:
    failure = _failure(gang)
    if failure is not None:
        return _end(gang, failure._replace(final=not gang.started), now)
    found = {slot: _report(gang, slot).reached for slot in _playing(gang)}
    if any(reached is None for reached in found.values()) and now < gang.began_at + CHECK_TIMEOUT_S:
        return gang
    pairs = {
        (_name(gang, source), _name(gang, slot)): why
        for source, reached in found.items()
        for slot, why in (reached or {}).items()
    }
    facts = {_name(gang, slot): told for slot in _playing(gang) if (told := _report(gang, slot).facts) is not None}
    problems, warnings, first = gate.verdict(_named_members(gang), facts, pairs)
    if problems:
        end = End(Outcome.FAILED, _slot_of(gang, first), "\n".join(problems), final=not gang.started, told=NOT_READY)
        return _end(gang, end, now)
    timeout_s = gang.terms.policy.timeout_s
    ends_at = now + timeout_s if timeout_s > 0 and gang.ends_at is None else gang.ends_at
    gang = gang._replace(started=True, went_at=now, ends_at=ends_at, notices=(*gang.notices, *warnings))
    return _enter(gang, Stage.GO, now)


def _running(gang: Gang, now: float) -> Gang:
    gang = _without_evaluators(gang)
    if gang.trained_at is None:
        failure = _failure(gang)
        if failure is not None:
            return _end(gang, failure, now)
        if not _succeeded(gang):
            return _watched(gang, now)
        gang = gang._replace(trained_at=now)
    return _evaluating(gang, now)


def _needed(gang: Gang) -> List[str]:
    """The slots on whose success that of the job depends."""
    return _training(gang)[:1] if gang.terms.policy.success is SuccessPolicy.CHIEF else _training(gang)


def _succeeded(gang: Gang) -> bool:
    return all(_has_ended(gang, slot) for slot in _needed(gang))


def _without_evaluators(gang: Gang) -> Gang:
    """Tell of evaluators that failed: they read what the others write, and nobody waits for them."""
    for slot in _evaluators(gang):
        failed = _own_failure(gang, slot)
        reason = failed.reason if failed is not None else gang.lost.get(slot, "")
        if reason and slot not in gang.left_behind:
            told = f"{reason}; training goes on without it"
            gang = gang._replace(left_behind=gang.left_behind | {slot}, notices=(*gang.notices, told))
    return gang


def _evaluating(gang: Gang, now: float) -> Gang:
    """The training is over: evaluators may still evaluate the last checkpoint."""
    open_ones = [slot for slot in _evaluators(gang) if not _has_ended(gang, slot) and slot not in gang.left_behind]
    reports = [_report(gang, slot) for slot in open_ones]
    if gang.evaluated_from is None and _has_last_checkpoint(gang, reports):
        gang = gang._replace(evaluated_from=now)
    _, idle_at = _evaluation_ends(gang)
    idle = all(min(one.quiet_s, one.idle_s) >= EVALUATION_IDLE_S for one in reports)
    late = gang.trained_at is not None and now >= gang.trained_at + EVALUATION_S
    if not reports or late or (idle and idle_at is not None and now >= idle_at):
        return _end(gang, End(Outcome.SUCCEEDED), now)
    return gang


def _has_last_checkpoint(gang: Gang, reports: List[Report]) -> bool:
    if not all(_report(gang, slot).closed for slot in _needed(gang)):
        return False
    copied = any(report.source is not None for report in gang.reports.values())
    return not copied or all(report.snapshot == gang.snapshot for report in reports)


def _evaluation_ends(gang: Gang) -> Tuple[Optional[float], Optional[float]]:
    """When evaluators are stopped at the latest, and from when on if they are idle."""
    latest = gang.trained_at + EVALUATION_S if gang.trained_at is not None else None
    idle = gang.evaluated_from + EVALUATION_IDLE_S if gang.evaluated_from is not None else None
    return latest, idle


def _stopping(gang: Gang, now: float) -> Gang:
    unfinished = [slot for slot in _playing(gang) if slot not in gang.lost and not _report(gang, slot).closed]
    if unfinished and now < _stop_deadline(gang):
        return gang
    unheard = {slot: f"{_called(gang, slot)} did not answer" for slot in unfinished}
    gang = gang._replace(lost={**gang.lost, **unheard}, end=_first_cause(gang))
    return _wait(gang, now) if _again(gang) else _finish(gang, now)


def _stop_deadline(gang: Gang) -> float:
    return gang.began_at + gang.grace_s + max(STOP_MARGIN_S, gang.terms.link_timeout_s + 1.0)


def _first_cause(gang: Gang) -> Optional[End]:
    """Peers of a host that is gone, or is being taken, may fail before that is known: they only follow."""
    end = gang.end
    if end is None or end.outcome is not Outcome.FAILED or end.final or end.taken:
        return end
    preemption = _preemption(gang)
    if preemption is not None:
        return preemption
    follows = end.told == NOT_READY or (end.exit is not None and end.exit.code is not None)
    for slot, reason in gang.lost.items() if follows else ():
        if slot in _evaluators(gang):
            continue
        return End(Outcome.FAILED, slot, reason, taken=True)
    return end


def _is_survived(gang: Gang) -> bool:
    """Whether the attempt ends by the loss of a host that is no failure of the job."""
    end = gang.end
    if end is None or not end.taken or end.final or gang.isolated:
        return False
    return survives(gang.terms.policy, gang.preemptions)


def _again(gang: Gang) -> bool:
    """Whether the policy wants another attempt."""
    policy, end = gang.terms.policy, gang.end
    if end is None or end.outcome is not Outcome.FAILED or end.final or gang.isolated:
        return False
    if _is_survived(gang):
        return True
    if policy.restart is RestartPolicy.NEVER or gang.restarts >= policy.restarts:
        return False
    code = end.exit.code if end.exit is not None else None
    permanent = code is not None and code < 128 and code != START_ME_AGAIN
    return not (permanent and policy.restart is RestartPolicy.EXIT_CODE)


def _wait(gang: Gang, now: float) -> Gang:
    retry_s = min(LONGEST_BACKOFF_S, gang.terms.policy.backoff_s * 2.0 ** min(gang.restarts, 20))
    return _enter(gang._replace(retry_s=retry_s), Stage.WAIT, now)


def _retry_at(gang: Gang) -> float:
    return max(gang.began_at + gang.retry_s, gang.fenced_until)


def _waiting(gang: Gang, now: float) -> Gang:
    taken = [slot for slot in sorted(gang.present) if _is_preempted(gang, slot)]
    if taken and len(taken) == len(gang.present) and now >= _alone_at(gang):
        return _given_up(gang, "no other host is left", now)
    if now < _retry_at(gang) or (now < gang.began_at + _DYING_S and _is_awaited(gang, taken)):
        return gang
    terms, idle = gang.terms, _idle(gang)
    cast = recast(terms.roles, gang.cast, idle, fewest=None)
    if cast is None and now >= _given_up_at(gang):
        cast = recast(terms.roles, gang.cast, idle, fewest=terms.policy.min_workers or len(terms.roles))
        if cast is None:
            return _given_up(gang, f"nobody took its place within {terms.policy.host_timeout_s:g} s", now)
    return gang if cast is None else _begin(gang, tuple(cast), now)


def _given_up_at(gang: Gang) -> float:
    """Return when a missing host is given up: a host lost during the back-off has all of the host timeout, too."""
    missed_from = max(gang.began_at, gang.missed_from)
    return max(_retry_at(gang), missed_from + gang.terms.policy.host_timeout_s)


def _alone_at(gang: Gang) -> float:
    """From when on whoever is not linked is not there."""
    all_here = len(gang.present) == len(gang.terms.slots)
    return gang.began_at + (0.0 if all_here else gang.terms.link_timeout_s)


def _is_awaited(gang: Gang, taken: List[str]) -> bool:
    """Whether the end of hosts that are being taken comes first: others must copy what they hold, or lead."""
    return gang.me in taken or (bool(holders := _holders(gang)) and all(slot in taken for slot in holders))


def _given_up(gang: Gang, why: str, now: float) -> Gang:
    """End a job that was to begin another attempt; `why` completes the sentence on the host that is missing."""
    end = gang.end
    if end is not None and end.taken:
        missing = [slot for slot in _playing(gang) if slot not in gang.present]
        later = [] if end.first in missing else missing
        also = f"; {_called(gang, later[0])} was lost after that" if later else ""
        gang = gang._replace(end=end._replace(reason=f"{end.reason}{also}, and {why}"))
    return _finish(gang, now)


def _begin(gang: Gang, cast: Tuple[Part, ...], now: float) -> Gang:
    attempt = 1 + max(gang.attempt, *(report.attempt for report in gang.reports.values()))
    changed = _changes(gang.cast, cast)
    survived = _is_survived(gang)
    gang = gang._replace(
        attempt=attempt,
        restarts=gang.restarts + (not survived),
        preemptions=gang.preemptions + survived,
        cast=cast,
        members=_members(gang.terms, cast, gang.reports),
        lost={},
        end=None,
        grace_s=0.0,
        retry_s=0.0,
        look=0,
        hang_told=False,
        trained_at=None,
        evaluated_from=None,
        left_behind=frozenset(),
        notices=(f"attempt {attempt}: {changed}",) if changed else (),
    )
    return _enter(gang, Stage.RESERVE, now)


def _changes(before: Tuple[Part, ...], after: Tuple[Part, ...]) -> str:
    played = {part.slot: part.role for part in before}
    new = [part for part in after if played.get(part.slot) != part.role]
    gone = [part.slot for part in before if part.slot not in {other.slot for other in after}]
    clauses = [f"{', '.join(gone)} left out"] if gone else []
    clauses += [f"{part.slot} is {part.role}" for part in new]
    return ", ".join(clauses)


def _finish(gang: Gang, now: float) -> Gang:
    end = gang.end or End(Outcome.SUCCEEDED)
    result = JobResult(
        gang.terms.job,
        gang.attempt,
        end.outcome,
        0.0,
        _name(gang, end.first),
        end.reason,
        {_name(gang, slot): ended for slot, ended in _exits(gang).items()},
        gang.started,
        isolated=gang.isolated or 2 * len(gang.present) <= len(gang.terms.slots),
    )
    return _enter(gang._replace(result=result), Stage.RESULT, now)


def _over(gang: Gang, now: float) -> Gang:
    del now
    return gang


# --- the watches --------------------------------------------------------------------------------------------------


def _watched(gang: Gang, now: float) -> Gang:
    if gang.look_until is not None:
        return _looked(gang, now)
    if not _hangs(gang, now):
        progress = gang.hang_told and not _all_quiet(gang, gang.terms.policy.hang_timeout_s)
        return gang._replace(hang_told=False) if progress else gang
    if gang.hang_told:
        return gang
    return gang._replace(look=gang.look + 1, look_until=now + _LOOK_S)


def _running_reports(gang: Gang, slots: List[str]) -> List[Report]:
    return [_report(gang, slot) for slot in slots if not _has_ended(gang, slot)]


def _all_quiet(gang: Gang, seconds: float) -> bool:
    """Whether nobody who trains wrote anything, and somebody did nothing at all, for so long.

    Under a coordinator nobody did anything: workers have nothing to say, and the coordinator nothing to compute.
    """
    running = _running_reports(gang, _training(gang))
    idle = [report.idle_s >= seconds for report in running]
    stands = all(idle) if is_coordinated(_roles(gang)) else any(idle)
    return bool(running) and stands and all(report.quiet_s >= seconds for report in running)


def _start_overdue(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.start_timeout_s
    if limit_s <= 0 or now < gang.went_at + limit_s or any(_report(gang, slot).stepped for slot in _training(gang)):
        return False
    return _all_quiet(gang, min(_LONGEST_QUIET_START_S, limit_s / 2))


def _hangs(gang: Gang, now: float) -> bool:
    limit_s = gang.terms.policy.hang_timeout_s
    return (limit_s > 0 and _all_quiet(gang, limit_s)) or _start_overdue(gang, now)


def _looked(gang: Gang, now: float) -> Gang:
    asked = [slot for slot in _playing(gang) if slot not in _evaluators(gang)]
    running = _running_reports(gang, asked)
    seen = [report for report in running if report.looked == gang.look]
    if len(seen) < len(running) and gang.look_until is not None and now < gang.look_until:
        return gang
    policy = gang.terms.policy
    gang = gang._replace(look_until=None, hang_told=True)
    stalled = {one.slot: one.stalled for one in seen if one.stalled is not None}
    stalled.update({slot: Stalled(slot, gang.attempt, 0.0, "", "", []) for slot in asked if _has_ended(gang, slot)})
    told = {_name(gang, slot): one._replace(task=_name(gang, slot)) for slot, one in stalled.items()}
    members = [one._replace(task=_name(gang, one.task)) for one in gang.members if one.task in asked]
    waits, first = who_waits(told, members), _slot_of(gang, waited_for(told, members))
    if _start_overdue(gang, now):
        reason = f"no first step within {policy.start_timeout_s:g} s: {waits}"
        return _end(gang, End(Outcome.FAILED, first, reason), now)
    reason = f"no progress for {policy.hang_timeout_s:g} s: {waits}"
    if policy.on_hang is OnHang.RESTART:
        return _end(gang, End(Outcome.FAILED, first, reason), now)
    return gang._replace(notices=(*gang.notices, reason))


_STEPS: Dict[Stage, Callable[[Gang, float], Gang]] = {
    Stage.RESERVE: _reserving,
    Stage.LAUNCH: _launching,
    Stage.CHECK: _checking,
    Stage.GO: _running,
    Stage.STOP: _stopping,
    Stage.WAIT: _waiting,
    Stage.RESULT: _over,
}
