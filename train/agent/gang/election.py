"""Elect the leader of a gang, and follow or lead it: a pure state machine of one supervisor.

Each supervisor is connected to the leader. If the leader is lost and the job may continue, the next slot by rank
leads: a supervisor that seeks a leader dials the first of the others, and leads itself if all before it are gone.
After a network partition there may be two leaders. They find each other, because a leader probes missing slots: the
one with an attempt in progress wins, then the one with the later term, then the one with the lower rank. The other
ends its tasks before it follows. If `min_workers` is greater than half of the slots, a partitioned job never runs
twice.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

from train import defaults
from train.agent.gang import reconciler, scheduling, stop
from train.agent.gang.attempt import Ending, Gang, JobTerms
from train.agent.gang.reconciler import Slot, SlotAction, SlotEvent
from train.agent.gang.states import DesiredState, LeaderClaim, Message, SlotStatus, Stage
from train.agent.protocol.cluster import by_rank, called, task_rank
from train.agent.protocol.records import NO_REASON, Member, Outcome, Reason, ReasonKind, RestartPolicy

if TYPE_CHECKING:
    from typing import TypeAlias

# The others wait this much longer than the leader for a complete gang, so that the leader decides.
LEADER_FIRST_S = 5.0
PROBE_INTERVAL_S = 2.0
_REPLACED = "another agent replaced it"


class Mode(str, Enum):
    """The relation of a supervisor to the others."""

    LEADING = "leading"
    FOLLOWING = "following"
    SEEKING = "seeking"


class PeerConnected(NamedTuple):
    """The agent of another slot has authenticated, on a connection in either direction."""

    slot: str


class PeerLost(NamedTuple):
    """The agent of another slot is gone or was silent for too long; `reason` is a clause that says which."""

    slot: str
    reason: str


class MessageReceived(NamedTuple):
    """A message of another slot."""

    slot: str
    message: Message


class DeadlineReached(NamedTuple):
    """The time returned by `deadline` has come."""


class StopRequested(NamedTuple):
    """A user of this host requests the end of the job."""

    grace_s: float


PeerEvent: TypeAlias = "Union[PeerConnected, PeerLost, MessageReceived, DeadlineReached, StopRequested, SlotEvent]"


class SendMessage(NamedTuple):
    """Send a message to a connected slot."""

    slot: str
    message: Message


class Dial(NamedTuple):
    """Connect to the agent of a slot; retry until another one is dialled."""

    slot: str


class ProbePeer(NamedTuple):
    """Send one message to a slot that is not connected, if it can be reached, and disconnect."""

    slot: str
    message: Message


PeerAction: TypeAlias = "Union[SendMessage, Dial, ProbePeer, SlotAction]"


class Peer(NamedTuple):
    """The state of one supervisor."""

    terms: JobTerms
    local_slot: str
    mode: Mode
    term: int
    leader: str
    slot: Slot
    mode_since: float  # when it started to follow or seek this candidate
    gang: Optional[Gang] = None  # if it leads
    connected: FrozenSet[str] = frozenset()
    passed_over: FrozenSet[str] = frozenset()  # candidates that did not answer
    candidate: str = ""
    joined: bool = False  # a message of the leader was received
    newcomer: bool = False  # replaces a lost host; never leads before it has joined
    cut_off: bool = False  # others are still connected to the leader that was lost here
    lost: Dict[str, str] = {}  # lost leader -> reason
    job_deadline: Optional[float] = None
    probe_at: Optional[float] = None
    sent: Dict[str, Message] = {}  # last message to each connected slot


Step: TypeAlias = "Tuple[Peer, List[PeerAction]]"


def ranked(terms: JobTerms) -> List[str]:
    """Return all slots by rank."""
    return sorted((member.slot for member in terms.slots), key=task_rank)


def begin(terms: JobTerms, local_slot: str, slot: Slot, now: float) -> Step:
    """Return the state of a supervisor in a new job: the first slot by rank leads, and all prepare an attempt."""
    leader = ranked(terms)[0]
    gang = scheduling.form_gang(terms, leader, now)
    peer = Peer(terms, local_slot, Mode.FOLLOWING, 1, leader, slot, now, candidate=leader)
    peer, actions = _step_slot(peer, scheduling.desired_state(gang)._replace(term=0))
    if local_slot == leader:
        peer = peer._replace(mode=Mode.LEADING, gang=gang, joined=True)
    else:
        actions.append(Dial(leader))
    return _settle(peer, actions, now)


def resume(terms: JobTerms, local_slot: str, slot: Slot, last: DesiredState, reason: Reason, now: float) -> Step:
    """Return the state of a supervisor that replaces a killed one whose processes were all ended."""
    slot = reconciler.update_status(slot._replace(desired=last), attempt=last.attempt, reason=reason, closed=True)
    if terms.queued:  # whether its host was locked is unknown; to lock it again has no effect
        slot = slot._replace(claim=reconciler.Claims.NONE)
    if last.stage is Stage.QUEUE:
        return _resume_queue(terms, local_slot, reconciler.update_status(slot, reason=NO_REASON), last, now)
    peer = Peer(terms, local_slot, Mode.FOLLOWING, last.term, last.leader, slot, now, candidate=last.leader)
    if last.stage is Stage.RESULT:
        return _step_slot(peer, last)
    if local_slot == last.leader:
        return _settle(_lead(peer, Ending(Outcome.FAILED, local_slot, reason), {}, now), [], now)
    return _settle(peer, [Dial(last.leader)], now)


def _resume_queue(terms: JobTerms, local_slot: str, slot: Slot, last: DesiredState, now: float) -> Step:
    peer = Peer(
        terms, local_slot, Mode.FOLLOWING, last.term, last.leader, reconciler.queued(slot), now, candidate=last.leader
    )
    if local_slot != last.leader:
        return _settle(peer, [Dial(last.leader)], now)
    gang = scheduling.form_gang(terms, local_slot, now, term=last.term + 1)
    return _settle(peer._replace(mode=Mode.LEADING, term=gang.term, gang=gang, joined=True), [], now)


def join(terms: JobTerms, local_slot: str, slot: Slot, now: float) -> Step:
    """Return the state of a supervisor whose host replaces a lost one: it seeks the leader."""
    first = next(name for name in ranked(terms) if name != local_slot)
    members = by_rank([member for member in terms.slots if member.task])
    nothing = DesiredState(0, first, slot.attempt, Stage.STOP, members, started=True)
    slot = slot._replace(desired=nothing)
    peer = Peer(terms, local_slot, Mode.SEEKING, 0, first, slot, now, candidate=first, newcomer=True)
    return _settle(peer, [Dial(first)], now)


def step(peer: Peer, event: PeerEvent, now: float) -> Step:
    """Return the supervisor's state after `event`, and the actions to perform.

    `now` is in seconds of a monotonic clock.
    """
    if peer.slot.finished and not isinstance(event, (PeerConnected, MessageReceived)):
        return peer, []
    actions: List[PeerAction] = []
    if isinstance(event, PeerConnected):
        peer = _peer_connected(peer, event)
    elif isinstance(event, PeerLost):
        peer, actions = _peer_lost(peer, event, now)
    elif isinstance(event, MessageReceived):
        peer, actions = _receive(peer, event, now)
    elif isinstance(event, DeadlineReached):
        peer, actions = _deadline_reached(peer, now)
    elif isinstance(event, StopRequested):
        peer, actions = _stop_requested(peer, event.grace_s, now)
    else:
        if isinstance(event, reconciler.Unqueued):
            peer = peer._replace(mode_since=now)
        peer, actions = _step_slot(peer, event)
    return _settle(peer, actions, now)


def deadline(peer: Peer, now: float) -> Optional[float]:
    """Return when to feed `DeadlineReached`, or None."""
    if peer.slot.finished:
        return None
    if peer.gang is not None:
        due = (scheduling.deadline(peer.gang, now), peer.probe_at)
        return min((point for point in due if point is not None), default=None)
    if peer.mode is Mode.FOLLOWING and (peer.joined or (_is_queued(peer) and peer.slot.status.queued)):
        return None
    return peer.mode_since + _patience_s(peer)


def _patience_s(peer: Peer) -> float:
    """Return how long to seek a leader before it counts as gone."""
    if peer.mode is Mode.FOLLOWING and not peer.lost:
        return peer.terms.join_timeout_s + LEADER_FIRST_S
    return peer.terms.link_timeout_s + LEADER_FIRST_S


def _describe_slot(peer: Peer, slot: str) -> str:
    """``worker-1 (10.0.0.3)``."""
    name = peer.slot.desired.display_name(slot) if peer.slot.desired is not None else slot
    return called(peer.terms.slots, slot, name)


def _rank(peer: Peer, slot: str) -> int:
    return ranked(peer.terms).index(slot)


# --- messages and the local slot -----------------------------------------------------------------------------------


def _step_slot(peer: Peer, event: SlotEvent) -> Step:
    slot, done = reconciler.step(peer.slot, event)
    return peer._replace(slot=slot), list(done)


def _settle(peer: Peer, actions: List[PeerAction], now: float) -> Step:
    """Synchronize the gang with the local slot, and send each connected slot what is new."""
    if peer.gang is not None:
        peer, more = _synchronize(peer, now)
        actions = [*actions, *more]
    news = _new_messages(peer)
    if not news:
        return peer, actions
    actions = [*actions, *(SendMessage(slot, news[slot]) for slot in sorted(news, key=task_rank))]
    return peer._replace(sent={**peer.sent, **news}), _messages_first(actions)


def _new_messages(peer: Peer) -> Dict[str, Message]:
    """Return the message for each connected slot that has not received it; compares identity first."""
    news = {slot: message for slot in peer.connected if (message := _message_for(peer, slot)) is not None}
    sent = peer.sent
    return {
        slot: message for slot, message in news.items() if (last := sent.get(slot)) is not message and last != message
    }


def _messages_first(actions: List[PeerAction]) -> List[PeerAction]:
    # Messages take longer than local actions.
    return sorted(actions, key=lambda action: not isinstance(action, SendMessage))


def _synchronize(peer: Peer, now: float) -> Step:
    actions: List[PeerAction] = []
    while peer.gang is not None:
        gang = scheduling.receive_status(peer.gang, peer.slot.status, now)
        desired = scheduling.desired_state(gang)
        peer = peer._replace(gang=gang, job_deadline=gang.job_deadline)
        if peer.slot.desired == desired or peer.slot.finished:
            break
        peer, more = _step_slot(peer, desired)
        actions += more
    missing = peer.gang is not None and bool(missing_slots(peer))
    probe_at = None if not missing else peer.probe_at if peer.probe_at is not None else now + PROBE_INTERVAL_S
    return peer._replace(probe_at=probe_at), actions


def missing_slots(peer: Peer) -> List[str]:
    """Return the slots that a leader probes: all that took part and are not connected."""
    gang = peer.gang
    if gang is None or gang.isolated or gang.stage is Stage.RESULT:
        return []
    if not (gang.restarts or gang.preemptions or gang.lost):
        return []
    return [
        member.slot
        for member in peer.terms.slots
        if member.slot != peer.local_slot and member.slot not in peer.connected and _has_joined(peer, member)
    ]


def _has_joined(peer: Peer, member: Member) -> bool:
    """Return True unless a member has no address yet, because its host may join later."""
    joined = peer.slot.desired.joined if peer.slot.desired is not None else []
    return bool(member.address) or member.slot in peer.connected or member.slot in {item.slot for item in joined}


def _may_lead(peer: Peer) -> bool:
    """Return True if this host has taken part in the job: it joined before the last attempt."""
    joins = peer.local_slot in peer.terms.joinable
    had_task = peer.slot.desired is not None and bool(peer.slot.desired.task_of(peer.local_slot))
    return not peer.newcomer and (had_task or not joins)


def _message_for(peer: Peer, slot: str) -> Optional[Message]:
    if peer.gang is not None:
        return None if peer.gang.isolated else peer.slot.desired  # what the local slot follows, too
    follows = peer.mode is Mode.FOLLOWING and slot == peer.leader
    seeks = peer.mode is Mode.SEEKING and slot == peer.candidate and _may_lead(peer)
    if follows or seeks:
        return peer.slot.status._replace(term=peer.term)
    return _claim(peer) if peer.mode is Mode.FOLLOWING and peer.joined else LeaderClaim(peer.term, "")


# --- connections ---------------------------------------------------------------------------------------------------


def _peer_connected(peer: Peer, event: PeerConnected) -> Peer:
    sent = {slot: message for slot, message in peer.sent.items() if slot != event.slot}
    return peer._replace(connected=peer.connected | {event.slot}, sent=sent)


def _peer_lost(peer: Peer, event: PeerLost, now: float) -> Step:
    return _slot_lost(peer._replace(connected=peer.connected - {event.slot}), event.slot, event.reason, now)


def _slot_lost(peer: Peer, slot: str, reason: str, now: float) -> Step:
    if peer.gang is not None:
        return peer._replace(gang=scheduling.mark_lost(peer.gang, slot, reason, now)), []
    if peer.mode is Mode.FOLLOWING and slot == peer.leader:
        if _is_queued(peer) and peer.slot.status.stop_grace_s is None:  # nothing runs, so no other agent has to lead
            return peer._replace(joined=False, mode_since=now), [Dial(slot)]
        return _leader_lost(peer, reason, now)
    if peer.mode is Mode.SEEKING and slot == peer.candidate:
        return _seek_leader(peer._replace(passed_over=peer.passed_over | {slot}), [], now)
    return peer, []


def _leader_lost(peer: Peer, clause: str, now: float) -> Step:
    message = f"{_describe_slot(peer, peer.leader)} was lost: {clause}"
    lost = {**peer.lost, peer.leader: message}
    peer = peer._replace(lost=lost, joined=False)
    if peer.slot.status.stop_grace_s is not None:
        return _finish_isolated(peer, Ending(Outcome.CANCELLED, "", Reason("stopped on request")), now)
    reason = Reason(message, ReasonKind.HOST_LOST)
    if not _can_continue(peer):
        return _finish_isolated(peer, Ending(Outcome.FAILED, peer.leader, reason), now)
    peer, actions = _stop_local_task(peer, reason)
    return _seek_leader(peer, actions, now)


def _is_queued(peer: Peer) -> bool:
    """Return True if the leader has reported that the job is queued."""
    desired = peer.slot.desired
    return desired is not None and desired.term > 0 and desired.stage is Stage.QUEUE


def _can_continue(peer: Peer) -> bool:
    desired, policy = peer.slot.desired, peer.terms.policy
    if desired is None or not desired.started:
        return False
    if desired.stage is Stage.WAIT or desired.trained or stop.tolerates_preemption(policy, desired.preemptions):
        return True
    return policy.restart is not RestartPolicy.NEVER and desired.restarts < policy.restarts


def _stop_local_task(peer: Peer, reason: Reason) -> Step:
    """End the local task before a new leader is known."""
    desired = peer.slot.desired
    if desired is None or desired.stage in (Stage.WAIT, Stage.RESULT):
        return peer, []
    desired = desired._replace(stage=Stage.STOP, reason=reason, first_failed_slot=peer.leader)
    return _step_slot(peer, desired._replace(grace_s=min(peer.terms.grace_s, defaults.KILL_AFTER_FAILURE_S)))


def _seek_leader(peer: Peer, actions: List[PeerAction], now: float) -> Step:
    """Dial the first slot by rank that may still be alive; lead if that is the local slot."""
    gone = peer.passed_over | set(peer.lost)
    joined = {member.slot for member in peer.terms.slots if _has_joined(peer, member)}
    others = [slot for slot in ranked(peer.terms) if slot in joined - gone and slot != peer.local_slot]
    may_lead = _may_lead(peer)
    if not may_lead and not others:
        # It never took part in the job: the result of any other host takes precedence.
        end = Ending(Outcome.LOST, peer.local_slot, Reason("no agent of the job was found"))
        return _finish_isolated(peer, end, now)
    candidate = min([*others, peer.local_slot] if may_lead else others, key=task_rank)
    term = peer.term if may_lead else 0  # so that the others do not wait for this host to lead
    peer = peer._replace(mode=Mode.SEEKING, term=term, candidate=candidate, mode_since=now, cut_off=False)
    if candidate != peer.local_slot:
        return peer, [*actions, Dial(candidate)]
    reason = Reason(peer.lost.get(peer.leader, ""), ReasonKind.HOST_LOST)
    end = Ending(Outcome.FAILED, peer.leader, reason, host_lost=peer.leader in peer.lost)
    return _lead(peer, end, dict(peer.lost), now), actions


def _lead(peer: Peer, end: Ending, lost: Dict[str, str], now: float, *, isolated: bool = False) -> Peer:
    last = peer.slot.desired
    if last is None:
        return peer
    gang = scheduling.take_over(peer.terms, last, peer.local_slot, now, end=end, lost=lost, term=peer.term + 1)
    gang = gang._replace(isolated=isolated, job_deadline=peer.job_deadline)
    peer = peer._replace(mode=Mode.LEADING, term=gang.term, leader=peer.local_slot, candidate=peer.local_slot)
    return peer._replace(gang=gang, joined=True, passed_over=frozenset())


def _finish_isolated(peer: Peer, end: Ending, now: float) -> Step:
    """End the local part of the job with the result as far as it is known here."""
    lost = {member.slot: "" for member in peer.terms.slots if member.slot != peer.local_slot}
    return _lead(peer, end, {**lost, **peer.lost}, now, isolated=True), []


def _follow(peer: Peer, leader: str, term: int, now: float) -> Step:
    """Follow another leader with a better claim; the local task belongs to an outdated attempt and ends."""
    if leader == peer.leader and peer.mode is Mode.FOLLOWING:
        return peer._replace(term=term), []
    reason = Reason(f"{_describe_slot(peer, leader)} leads the job now")
    peer, actions = _stop_local_task(peer, reason)
    lost = {slot: why for slot, why in peer.lost.items() if slot != leader}
    peer = peer._replace(mode=Mode.FOLLOWING, leader=leader, term=term, mode_since=now, candidate=leader, lost=lost)
    peer = peer._replace(gang=None, joined=False, probe_at=None, passed_over=frozenset())
    return peer, [*actions, Dial(leader)]


# --- messages of the others ----------------------------------------------------------------------------------------


def _receive(peer: Peer, event: MessageReceived, now: float) -> Step:
    message = event.message
    if isinstance(message, SlotStatus):
        if peer.gang is not None and event.slot == message.slot:
            return peer._replace(gang=scheduling.receive_status(peer.gang, message, now)), []
        # A leader sends no status. Two connections may reorder older messages, which have an earlier term.
        if peer.mode is Mode.FOLLOWING and event.slot == peer.leader and message.term >= peer.term:
            return _leader_lost(peer, _REPLACED, now)
        return peer, []
    if isinstance(message, DesiredState):
        return _accept_desired_state(peer, event.slot, message, now)
    return _receive_claim(peer, event.slot, message, now)


def _has_priority(peer: Peer, claim: LeaderClaim) -> bool:
    """Return True if a claim to lead is better than that of the current leader."""

    def priority(claimed: LeaderClaim) -> Tuple[bool, int, int]:
        return claimed.running, claimed.term, -_rank(peer, claimed.leader)

    return priority(claim) > priority(_claim(peer))


def _claim(peer: Peer) -> LeaderClaim:
    desired = peer.slot.desired
    if peer.mode is Mode.SEEKING or desired is None or desired.leader != peer.leader:
        return LeaderClaim(peer.term, peer.leader)
    return LeaderClaim(peer.term, peer.leader, desired.running)


def _accept_desired_state(peer: Peer, sender: str, desired: DesiredState, now: float) -> Step:
    if sender != desired.leader or peer.slot.finished:
        return peer, []
    ours = sender == peer.leader and desired.term == peer.term and peer.mode is not Mode.LEADING
    actions: List[PeerAction] = []
    if not ours:
        is_new_term = sender == peer.leader and desired.term > peer.term
        claim = LeaderClaim(desired.term, sender, desired.running)
        if not is_new_term and not _has_priority(peer, claim):
            return peer, []
        if peer.mode is Mode.SEEKING:  # the new leader ignored what was sent to it before it led
            peer = peer._replace(sent={slot: message for slot, message in peer.sent.items() if slot != sender})
        peer, actions = _follow(peer, sender, desired.term, now)
        if sender in peer.connected:
            actions = [action for action in actions if not isinstance(action, Dial)]
    elif peer.mode is Mode.SEEKING:
        peer = peer._replace(mode=Mode.FOLLOWING, lost={})
    timeout_s = peer.terms.policy.timeout_s
    if desired.stage is Stage.GO and timeout_s > 0 and peer.job_deadline is None:
        peer = peer._replace(job_deadline=now + timeout_s)
    peer, more = _step_slot(peer._replace(joined=True, cut_off=False, newcomer=False), desired)
    return peer, [*actions, *more]


def _receive_claim(peer: Peer, sender: str, message: LeaderClaim, now: float) -> Step:
    if peer.slot.finished or message.leader == peer.local_slot:
        return peer, []
    if message.term == 0 and not message.leader:
        # A new supervisor in an existing slot, or of a host without a task: it will not lead, and nothing runs there.
        return _slot_lost(peer, sender, _REPLACED, now)
    if peer.mode is Mode.SEEKING:
        return _receive_claim_while_seeking(peer, sender, message, now)
    hands_over = sender == peer.leader and message.leader != sender
    if message.leader and (hands_over or _has_priority(peer, message)):
        return _follow(peer, message.leader, message.term, now)
    if peer.mode is Mode.FOLLOWING and peer.joined and message.leader == sender and sender not in peer.connected:
        return peer, [ProbePeer(sender, _claim(peer))]  # it cannot reach the leader, or it would follow it
    return peer, []


def _receive_claim_while_seeking(peer: Peer, sender: str, message: LeaderClaim, now: float) -> Step:
    """Handle a claim while seeking: follow the leader, or wait if none is known."""
    if not message.leader:
        return (peer._replace(mode_since=now, cut_off=False) if sender == peer.candidate else peer), []
    if message.leader in peer.lost and sender != message.leader:
        return peer._replace(cut_off=True), []
    return _follow(peer, message.leader, message.term, now)


# --- deadlines and users -------------------------------------------------------------------------------------------


def _deadline_reached(peer: Peer, now: float) -> Step:
    if peer.gang is not None:
        gang, actions = scheduling.advance(peer.gang, now), []
        if peer.probe_at is not None and now >= peer.probe_at:
            actions = [ProbePeer(slot, _claim(peer)) for slot in missing_slots(peer)]
            peer = peer._replace(probe_at=now + PROBE_INTERVAL_S)
        return peer._replace(gang=gang), list(actions)
    late = deadline(peer, now)
    if late is None or now < late:
        return peer, []
    return _leader_timed_out(peer, now)


def _leader_timed_out(peer: Peer, now: float) -> Step:
    if peer.mode is Mode.FOLLOWING:  # never joined
        port = next(member.link_port for member in peer.terms.slots if member.slot == peer.leader)
        waited = f"its agent at port {port} did not answer within {_patience_s(peer):g} s"
        return _leader_lost(peer, waited, now)
    if peer.cut_off:
        first = next(iter(peer.lost))
        reason = Reason(f"{peer.lost[first]}; others still reach it", ReasonKind.HOST_LOST)
        return _finish_isolated(peer, Ending(Outcome.FAILED, first, reason), now)
    if peer.candidate in peer.connected:
        return peer._replace(mode_since=now), []
    return _seek_leader(peer._replace(passed_over=peer.passed_over | {peer.candidate}), [], now)


def _stop_requested(peer: Peer, grace_s: float, now: float) -> Step:
    if peer.gang is not None:
        return peer._replace(gang=scheduling.request_stop(peer.gang, grace_s, now)), []
    peer = peer._replace(slot=reconciler.update_status(peer.slot, stop_grace_s=grace_s))
    if peer.joined:
        return peer, []
    return _finish_isolated(peer, Ending(Outcome.CANCELLED, "", Reason("stopped on request")), now)
