"""The mind of one supervisor, pure: its slot, whom it follows, and the gang where it leads.

Each supervisor is linked to the leader. Where the leader is lost and the job may go on, the next by rank leads: who
seeks a leader goes to the first of the others, and leads himself where all before him are gone. Two who lead, after
a network was in two parts, find each other, since a leader knocks at whom it misses: the one with an attempt under
way goes on, then the one of the later term, then the one of the lower rank, and the other ends what runs in its part
before it follows. A job in two parts is kept from going on twice by `min_workers` greater than half of its workers.
"""

from enum import Enum
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

from train.agent.gang import gang as gangs
from train.agent.gang import slot as slots
from train.agent.gang.gang import End, Gang, Terms
from train.agent.gang.slot import Slot, SlotAction, SlotEvent
from train.agent.gang.states import Leads, Message, Order, Report, Stage
from train.agent.protocol.cluster import by_rank, called
from train.agent.protocol.records import Outcome, RestartPolicy

# How much longer than the leader the others wait for a gang to be complete, so that the verdict is the leader's.
LEADER_FIRST_S = 5.0
KNOCK_S = 2.0
_REPLACED = "another agent has taken its place"


class Mode(str, Enum):
    """What a supervisor is to the others."""

    LEADING = "leading"
    FOLLOWING = "following"
    SEEKING = "seeking"


class LinkUp(NamedTuple):
    """The agent of another slot has proven itself, on a connection of its or of ours."""

    slot: str


class LinkDown(NamedTuple):
    """The agent of another slot is gone, or was silent for too long; `reason` is a clause that says which."""

    slot: str
    reason: str


class Heard(NamedTuple):
    """What another slot said."""

    slot: str
    message: Message


class Due(NamedTuple):
    """The point in time of `deadline` has come."""


class StopAsked(NamedTuple):
    """Somebody on this host wants the job to end."""

    grace_s: float


NodeEvent = Union[LinkUp, LinkDown, Heard, Due, StopAsked, SlotEvent]


class Tell(NamedTuple):
    """Say something to a slot that is linked."""

    slot: str
    message: Message


class Dial(NamedTuple):
    """Link with the agent of a slot, and try again until another is dialled."""

    slot: str


class Knock(NamedTuple):
    """Say something to a slot that is not linked, if it can be reached, and hang up."""

    slot: str
    message: Message


NodeAction = Union[Tell, Dial, Knock, SlotAction]


class Node(NamedTuple):
    """What a supervisor knows."""

    terms: Terms
    me: str
    mode: Mode
    term: int
    leader: str
    slot: Slot
    since: float  # when it began to follow or to seek this one
    gang: Optional[Gang] = None
    linked: FrozenSet[str] = frozenset()
    passed: FrozenSet[str] = frozenset()  # candidates that are gone
    candidate: str = ""
    joined: bool = False  # the leader was heard
    newcomer: bool = False  # took a lost host's place, and never leads before it was heard
    cut_off: bool = False  # others still hear the leader whom we lost
    lost: Dict[str, str] = {}  # noqa: RUF012 - never changed; leaders, and how they were lost
    ends_at: Optional[float] = None
    knock_at: Optional[float] = None
    said: Dict[str, Message] = {}  # noqa: RUF012 - never changed; the last word to each that is linked


Step = Tuple[Node, List[NodeAction]]


def ranked(terms: Terms) -> List[str]:
    """All slots by rank."""
    return [member.task for member in by_rank(terms.slots)]


def begin(terms: Terms, me: str, slot: Slot, now: float) -> Step:
    """A supervisor whose host was prepared: the first by rank leads, and all make ready for the first attempt."""
    leader = ranked(terms)[0]
    gang = gangs.form(terms, leader, now)
    node = Node(terms, me, Mode.FOLLOWING, 1, leader, slot, now, candidate=leader)
    node, actions = _feed(node, gangs.order(gang)._replace(term=0))
    if me == leader:
        node = node._replace(mode=Mode.LEADING, gang=gang, joined=True)
    else:
        actions.append(Dial(leader))
    return _settled(node, actions, now)


def resume(terms: Terms, me: str, slot: Slot, last: Order, reason: str, now: float) -> Step:
    """A supervisor whose forerunner was killed, and all processes of whose slot were ended; `reason` says so."""
    slot = slot._replace(order=last, attempt=last.attempt, reason=reason, closed=True)
    node = Node(terms, me, Mode.FOLLOWING, last.term, last.leader, slot, now, candidate=last.leader)
    if last.stage is Stage.RESULT:
        return _feed(node, last)
    if me == last.leader:
        return _settled(*_lead(node, End(Outcome.FAILED, me, reason), {}, now), now)
    return _settled(node, [Dial(last.leader)], now)


def join(terms: Terms, me: str, slot: Slot, now: float) -> Step:
    """A supervisor whose host took the place of a lost one: it looks for who leads."""
    first = next(name for name in ranked(terms) if name != me)
    cast = list(terms.first_cast)
    nothing = Order(0, first, slot.attempt, Stage.STOP, cast, list(terms.slots), started=True)
    slot = slot._replace(order=nothing)
    node = Node(terms, me, Mode.SEEKING, 0, first, slot, now, candidate=first, newcomer=True)
    return _settled(node, [Dial(first)], now)


def step(node: Node, event: NodeEvent, now: float) -> Step:
    """What becomes of a supervisor by `event`, and what is to be done.

    `now` is in seconds by any clock that never goes back.
    """
    if node.slot.finished and not isinstance(event, (LinkUp, Heard)):
        return node, []
    actions: List[NodeAction] = []
    if isinstance(event, LinkUp):
        node = _linked(node, event)
    elif isinstance(event, LinkDown):
        node, actions = _unlinked(node, event, now)
    elif isinstance(event, Heard):
        node, actions = _heard(node, event, now)
    elif isinstance(event, Due):
        node, actions = _due(node, now)
    elif isinstance(event, StopAsked):
        node, actions = _stop_asked(node, event.grace_s, now)
    else:
        node, actions = _feed(node, event)
    return _settled(node, actions, now)


def deadline(node: Node, now: float) -> Optional[float]:
    """When Due is due."""
    if node.slot.finished:
        return None
    if node.mode is Mode.LEADING:
        own = gangs.deadline(node.gang, now) if node.gang is not None else None
        return min((point for point in (own, node.knock_at) if point is not None), default=None)
    if node.mode is Mode.FOLLOWING and node.joined:
        return None
    return node.since + _patience_s(node)


def _patience_s(node: Node) -> float:
    """How long a leader may be sought before he counts as gone."""
    if node.mode is Mode.FOLLOWING and not node.lost:
        return node.terms.join_timeout_s + LEADER_FIRST_S
    return node.terms.link_timeout_s + LEADER_FIRST_S


def _called(node: Node, slot: str) -> str:
    """``worker-1 (10.0.0.3)``."""
    name = node.slot.order.name_of(slot) if node.slot.order is not None else slot
    return called([member._replace(task=name) for member in node.terms.slots if member.task == slot], name)


def _rank(node: Node, slot: str) -> int:
    return ranked(node.terms).index(slot)


# --- one word to each, and the slot's part -------------------------------------------------------------------------


def _feed(node: Node, event: SlotEvent) -> Step:
    slot, done = slots.step(node.slot, event)
    return node._replace(slot=slot), list(done)


def _settled(node: Node, actions: List[NodeAction], now: float) -> Step:
    """Let gang and slot come to terms, and tell the others what is new."""
    if node.mode is Mode.LEADING:
        node, more = _come_to_terms(node, now)
        actions = [*actions, *more]
    said = {slot: message for slot, message in node.said.items() if slot in node.linked}
    for slot in sorted(node.linked, key=lambda name: _rank(node, name)):
        message = _word_for(node, slot)
        if message is not None and said.get(slot) != message:
            said[slot] = message
            actions = [*actions, Tell(slot, message)]
    return node._replace(said=said), _others_first(actions)


def _others_first(actions: List[NodeAction]) -> List[NodeAction]:
    # What goes over the network takes longer than what stays here.
    return sorted(actions, key=lambda action: not isinstance(action, Tell))


def _come_to_terms(node: Node, now: float) -> Step:
    actions: List[NodeAction] = []
    while node.gang is not None:
        gang = gangs.hear(node.gang, slots.report(node.slot), now)
        wanted = gangs.order(gang)
        node = node._replace(gang=gang, ends_at=gang.ends_at)
        if node.slot.order == wanted or node.slot.finished:
            break
        node, more = _feed(node, wanted)
        actions += more
    missing = node.gang is not None and bool(_missed(node))
    knock_at = None if not missing else node.knock_at if node.knock_at is not None else now + KNOCK_S
    return node._replace(knock_at=knock_at), actions


def _missed(node: Node) -> List[str]:
    """Whom a leader ought to look for: all that took part and are not linked."""
    gang = node.gang
    if gang is None or gang.isolated or gang.stage is Stage.RESULT:
        return []
    if not (gang.restarts or gang.preemptions or gang.lost):
        return []
    return [member.task for member in node.terms.slots if member.task != node.me and member.task not in node.linked]


def _word_for(node: Node, slot: str) -> Optional[Message]:
    if node.mode is Mode.LEADING and node.gang is not None:
        return None if node.gang.isolated else node.slot.order  # what we obey ourselves
    follows = node.mode is Mode.FOLLOWING and slot == node.leader
    seeks = node.mode is Mode.SEEKING and slot == node.candidate and not node.newcomer
    if follows or seeks:
        return slots.report(node.slot)._replace(term=node.term)
    return _claim(node) if node.mode is Mode.FOLLOWING and node.joined else Leads(node.term, "")


# --- links ----------------------------------------------------------------------------------------------------------


def _linked(node: Node, event: LinkUp) -> Node:
    said = {slot: message for slot, message in node.said.items() if slot != event.slot}
    return node._replace(linked=node.linked | {event.slot}, said=said)


def _unlinked(node: Node, event: LinkDown, now: float) -> Step:
    node = node._replace(linked=node.linked - {event.slot})
    if node.mode is Mode.LEADING and node.gang is not None:
        return node._replace(gang=gangs.lose(node.gang, event.slot, event.reason, now)), []
    if node.mode is Mode.FOLLOWING and event.slot == node.leader:
        return _lost_leader(node, event.reason, now)
    if node.mode is Mode.SEEKING and event.slot == node.candidate:
        return _seek(node._replace(passed=node.passed | {event.slot}), [], now)
    return node, []


def _lost_leader(node: Node, reason: str, now: float) -> Step:
    message = f"{_called(node, node.leader)} was lost: {reason}"
    lost = {**node.lost, node.leader: message}
    node = node._replace(lost=lost, joined=False)
    if node.slot.stop is not None:
        return _alone(node, End(Outcome.CANCELLED, "", "stopped on request"), now)
    if not _may_go_on(node):
        return _alone(node, End(Outcome.FAILED, node.leader, message), now)
    node, actions = _halt(node, message)
    return _seek(node, actions, now)


def _may_go_on(node: Node) -> bool:
    order = node.slot.order
    policy = node.terms.policy
    if order is None or not order.started:
        return False
    if order.stage is Stage.WAIT or order.trained or gangs.survives(policy, order.preemptions):
        return True
    return policy.restart is not RestartPolicy.NEVER and order.restarts < policy.restarts


def _halt(node: Node, reason: str) -> Step:
    """End what runs here, whoever will lead."""
    order = node.slot.order
    if order is None or order.stage in (Stage.WAIT, Stage.RESULT):
        return node, []
    grace_s = min(node.terms.grace_s, gangs.FAILURE_GRACE_S)
    return _feed(node, order._replace(stage=Stage.STOP, reason=reason, first=node.leader, grace_s=grace_s))


def _seek(node: Node, actions: List[NodeAction], now: float) -> Step:
    """Go to the first by rank who may still be there; lead, where that is us."""
    gone = node.passed | set(node.lost)
    if node.newcomer:
        others = [slot for slot in ranked(node.terms) if slot not in gone and slot != node.me]
        if not others:
            # It never had a part in the job: the result of any other host counts more.
            return _alone(node, End(Outcome.LOST, node.me, "no agent of the job was found"), now)
        node = node._replace(mode=Mode.SEEKING, term=0, candidate=others[0], since=now, cut_off=False)
        return node, [*actions, Dial(others[0])]
    candidate = next(slot for slot in ranked(node.terms) if slot not in gone or slot == node.me)
    node = node._replace(mode=Mode.SEEKING, candidate=candidate, since=now, cut_off=False)
    if candidate != node.me:
        return node, [*actions, Dial(candidate)]
    end = End(Outcome.FAILED, node.leader, node.lost.get(node.leader, ""), taken=node.leader in node.lost)
    node, more = _lead(node, end, dict(node.lost), now)
    return node, [*actions, *more]


def _lead(node: Node, end: End, lost: Dict[str, str], now: float, *, isolated: bool = False) -> Step:
    last = node.slot.order
    if last is None:
        return node, []
    gang = gangs.take_over(node.terms, last, node.me, now, end=end, lost=lost, term=node.term + 1)
    gang = gang._replace(isolated=isolated, ends_at=node.ends_at)
    node = node._replace(
        mode=Mode.LEADING,
        term=gang.term,
        leader=node.me,
        gang=gang,
        joined=True,
        passed=frozenset(),
        candidate=node.me,
    )
    return node, []


def _alone(node: Node, end: End, now: float) -> Step:
    """End our part of the job, and say of it what we know."""
    lost = {member.task: "" for member in node.terms.slots if member.task != node.me}
    return _lead(node, end, {**lost, **node.lost}, now, isolated=True)


def _follow(node: Node, leader: str, term: int, now: float) -> Step:
    """Follow another, whose claim is better; what runs here was begun by nobody that counts any more."""
    if leader == node.leader and node.mode is Mode.FOLLOWING:
        return node._replace(term=term), []
    reason = f"{_called(node, leader)} leads the job now"
    halted, actions = _halt(node, reason)
    node = halted._replace(
        mode=Mode.FOLLOWING,
        leader=leader,
        term=term,
        gang=None,
        joined=False,
        since=now,
        candidate=leader,
        knock_at=None,
    )
    lost = {slot: why for slot, why in node.lost.items() if slot != leader}
    return node._replace(lost=lost, passed=frozenset()), [*actions, Dial(leader)]


# --- what the others say --------------------------------------------------------------------------------------------


def _heard(node: Node, event: Heard, now: float) -> Step:
    message = event.message
    if isinstance(message, Report):
        if node.mode is Mode.LEADING and node.gang is not None and event.slot == message.slot:
            return node._replace(gang=gangs.hear(node.gang, message, now)), []
        # A leader does not report. Two connections may reorder what it said before it led, always in an earlier term.
        if node.mode is Mode.FOLLOWING and event.slot == node.leader and message.term >= node.term:
            return _lost_leader(node, _REPLACED, now)
        return node, []
    if isinstance(message, Order):
        return _obey(node, event.slot, message, now)
    return _told_who_leads(node, event.slot, message, now)


def _goes_before(node: Node, claim: Leads) -> bool:
    """Whether a claim to lead is better than that of whom we follow, or than ours."""
    ours = _claim(node)
    return (claim.running, claim.term, -_rank(node, claim.leader)) > (
        ours.running,
        ours.term,
        -_rank(node, ours.leader),
    )


def _claim(node: Node) -> Leads:
    order = node.slot.order
    known = node.mode is not Mode.SEEKING and order is not None and order.leader == node.leader
    return Leads(node.term, node.leader, known and order is not None and order.running)


def _obey(node: Node, sender: str, order: Order, now: float) -> Step:
    if sender != order.leader or node.slot.finished:
        return node, []
    ours = sender == node.leader and order.term == node.term and node.mode is not Mode.LEADING
    actions: List[NodeAction] = []
    if not ours:
        again = sender == node.leader and order.term > node.term
        if not again and not _goes_before(node, Leads(order.term, sender, order.running)):
            return node, []
        if node.mode is Mode.SEEKING:  # what it was told before it led, it did not listen to
            node = node._replace(said={slot: message for slot, message in node.said.items() if slot != sender})
        node, actions = _follow(node, sender, order.term, now)
        actions = [action for action in actions if not isinstance(action, Dial)] if sender in node.linked else actions
    elif node.mode is Mode.SEEKING:
        node = node._replace(mode=Mode.FOLLOWING, lost={})
    timeout_s = node.terms.policy.timeout_s
    if order.stage is Stage.GO and timeout_s > 0 and node.ends_at is None:
        node = node._replace(ends_at=now + timeout_s)
    node, more = _feed(node._replace(joined=True, cut_off=False, newcomer=False), order)
    return node, [*actions, *more]


def _told_who_leads(node: Node, sender: str, message: Leads, now: float) -> Step:
    if node.slot.finished or message.leader == node.me:
        return node, []
    if message.term == 0 and not message.leader:
        return _met_newcomer(node, sender, now)
    if node.mode is Mode.SEEKING:
        return _sought(node, sender, message, now)
    hands_over = sender == node.leader and message.leader != sender
    if message.leader and (hands_over or _goes_before(node, message)):
        return _follow(node, message.leader, message.term, now)
    if node.mode is Mode.FOLLOWING and node.joined and message.leader == sender and sender not in node.linked:
        return node, [Knock(sender, _claim(node))]  # it does not reach who leads, or it would know
    return node, []


def _sought(node: Node, sender: str, message: Leads, now: float) -> Step:
    """What becomes of who seeks a leader when he is told of one, or that nobody is known."""
    if not message.leader:
        return (node._replace(since=now, cut_off=False) if sender == node.candidate else node), []
    if message.leader in node.lost and sender != message.leader:
        return node._replace(cut_off=True), []
    return _follow(node, message.leader, message.term, now)


def _met_newcomer(node: Node, slot: str, now: float) -> Step:
    """Whoever has just come knows nothing, and will not lead; of what was there before it nothing is left."""
    if node.mode is Mode.LEADING and node.gang is not None:
        return node._replace(gang=gangs.lose(node.gang, slot, _REPLACED, now)), []
    if node.mode is Mode.FOLLOWING and slot == node.leader:
        return _lost_leader(node, _REPLACED, now)
    if node.mode is Mode.SEEKING and slot == node.candidate:
        return _seek(node._replace(passed=node.passed | {slot}), [], now)
    return node, []


# --- time and users -------------------------------------------------------------------------------------------


def _due(node: Node, now: float) -> Step:
    if node.mode is Mode.LEADING:
        actions: List[NodeAction] = []
        if node.knock_at is not None and now >= node.knock_at:
            word = _claim(node)
            actions = [Knock(slot, word) for slot in _missed(node)]
            node = node._replace(knock_at=now + KNOCK_S)
        return (node._replace(gang=gangs.advance(node.gang, now)) if node.gang is not None else node), actions
    late = deadline(node, now)
    if late is None or now < late:
        return node, []
    return _gave_up(node, now)


def _gave_up(node: Node, now: float) -> Step:
    if node.mode is Mode.FOLLOWING:  # never joined
        port = next(member.link_port for member in node.terms.slots if member.task == node.leader)
        waited = f"its agent at port {port} did not answer within {_patience_s(node):g} s"
        return _lost_leader(node, waited, now)
    if node.cut_off:
        first = next(iter(node.lost))
        return _alone(node, End(Outcome.FAILED, first, f"{node.lost[first]}; others still reach it"), now)
    if node.candidate in node.linked:
        return node._replace(since=now), []
    return _seek(node._replace(passed=node.passed | {node.candidate}), [], now)


def _stop_asked(node: Node, grace_s: float, now: float) -> Step:
    if node.mode is Mode.LEADING and node.gang is not None:
        return node._replace(gang=gangs.stop(node.gang, grace_s, now)), []
    node = node._replace(slot=node.slot._replace(stop=grace_s))
    if node.joined:
        return node, []
    return _alone(node, End(Outcome.CANCELLED, "", "stopped on request"), now)
