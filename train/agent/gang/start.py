"""The stages until user code runs: queue, reserve, launch, check. Pure."""

from __future__ import annotations

from typing import Callable, Dict, List

from train.agent.checkpoints.snapshot import newest
from train.agent.gang import readiness
from train.agent.gang.attempt import NOT_READY, Ending, Gang, current_members
from train.agent.gang.states import Stage, start_delay_s
from train.agent.gang.stop import end_attempt
from train.agent.protocol.records import Outcome, Reason, ReasonKind

# Until every agent has reported which ports it reaches.
CHECK_TIMEOUT_S = 25.0
HOLDER_TIMEOUT_S = 5.0  # a new agent does not know the checkpoint of its host yet


def advance_start(gang: Gang, now: float) -> Gang:
    """Advance a stage before the start of user code; any failure ends the attempt."""
    failure = gang.find_failure()
    if failure is not None:
        is_final = not gang.started and (gang.stage is not Stage.RESERVE or gang.attempt == 1)
        return end_attempt(gang, failure._replace(final=is_final), now)
    return _STEPS[gang.stage](gang, now)


def awaits_slots(gang: Gang) -> bool:
    """Return True if a queued job waits for slots, which has a deadline, and not for the end of an earlier job."""
    return not gang.queue.gathered or gang.queue.is_turn


def _advance_queue(gang: Gang, now: float) -> Gang:
    assigned = gang.assigned_slots()
    missing = [slot for slot in assigned if slot not in gang.connected]
    if not missing and not gang.queue.gathered:
        gang = gang._replace(queue=gang.queue._replace(gathered=True))
    is_turn = not any(gang.statuses[slot].queued for slot in assigned if slot in gang.connected)
    if not missing and is_turn:
        return gang.enter(Stage.RESERVE, now)
    if is_turn != gang.queue.is_turn:
        gang = gang._replace(queue=gang.queue._replace(is_turn=is_turn), began_at=now)
    return _enforce_join_timeout(gang, missing, now) if missing and awaits_slots(gang) else gang


def _advance_reserve(gang: Gang, now: float) -> Gang:
    ports = {slot: gang.status_of(slot).port for slot in gang.assigned_slots()}
    if not all(ports.values()):
        return _enforce_join_timeout(gang, [slot for slot, port in ports.items() if not port], now)
    if _awaits_resumption(gang):
        if now < gang.began_at + gang.terms.join_timeout_s:
            return gang
        reason = Reason("no host reports the checkpoint from which the job continues")
        return end_attempt(gang, Ending(Outcome.FAILED, "", reason, final=True), now)
    if gang.snapshot is not None and not gang.checkpoint_holders():
        if now < gang.began_at + HOLDER_TIMEOUT_S:
            return gang
        gang = _fall_back_to_older_checkpoint(gang)
    members = current_members(gang.terms, gang.assignments(), gang.statuses)
    return gang._replace(members=members).enter(Stage.LAUNCH, now)


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
    missing = gang.unready_slots()
    return _enforce_join_timeout(gang, missing, now) if missing else gang.enter(Stage.CHECK, now)


def _enforce_join_timeout(gang: Gang, missing: List[str], now: float) -> Gang:
    if now < gang.began_at + gang.terms.join_timeout_s:
        return gang
    names = ", ".join(gang.describe_slot(slot) for slot in missing)
    text = f"{names} did not join within {gang.terms.join_timeout_s:g} s; nothing was started"
    if gang.started:
        text = f"{names} did not join attempt {gang.attempt} within {gang.terms.join_timeout_s:g} s"
    lost = {slot: text for slot in missing if slot not in gang.connected}
    gang = gang._replace(lost={**gang.lost, **lost})
    first = next(iter(lost), missing[0])
    reason = Reason(text, ReasonKind.NOT_JOINED)
    return end_attempt(gang, Ending(Outcome.FAILED, first, reason, final=not gang.started, host_lost=bool(lost)), now)


def _advance_check(gang: Gang, now: float) -> Gang:
    probe_results = {slot: gang.status_of(slot).probe_results for slot in gang.assigned_slots()}
    if any(results is None for results in probe_results.values()) and now < gang.began_at + CHECK_TIMEOUT_S:
        return gang
    names = {slot: task for task, slot in gang.assignments().items()}
    pairs = {
        (names[prober], names.get(slot, slot)): error
        for prober, results in probe_results.items()
        for slot, error in (results or {}).items()
    }
    facts = {task: facts for slot, task in names.items() if (facts := gang.status_of(slot).facts) is not None}
    verdict = readiness.verdict(gang.members, facts, pairs)
    if verdict.problems:
        reason, slot = Reason("\n".join(verdict.problems), verdict.kind), gang.find_slot(verdict.first_failed_task)
        end = Ending(Outcome.FAILED, slot, reason, final=not gang.started, summary=NOT_READY)
        return end_attempt(gang, end, now)
    timeout_s = gang.terms.policy.timeout_s
    job_deadline = now + timeout_s if timeout_s > 0 and gang.job_deadline is None else gang.job_deadline
    gang = gang._replace(started=True, job_deadline=job_deadline, notices=(*gang.notices, *verdict.warnings))
    gang = gang._replace(growth=gang.growth._replace(trial=frozenset()))
    delay_s = start_delay_s(len(gang.members), now - gang.began_at)
    return gang._replace(start_delay_s=delay_s).enter(Stage.GO, now)


_STEPS: Dict[Stage, Callable[[Gang, float], Gang]] = {
    Stage.QUEUE: _advance_queue,
    Stage.RESERVE: _advance_reserve,
    Stage.LAUNCH: _advance_launch,
    Stage.CHECK: _advance_check,
}
