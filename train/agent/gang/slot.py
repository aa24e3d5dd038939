"""One slot of a gang, pure: pursues what the leader wants, whatever has been missed, and tells where it is.

A slot never begins an attempt before nothing is left of the one before.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang.readiness import Facts
from train.agent.gang.states import Order, Report, Source, Stage
from train.agent.protocol.records import AttemptEnded, Exit, JobResult, Member, Stalled


class Reserved(NamedTuple):
    """A port is kept for the task of `attempt`."""

    attempt: int
    port: int


class Restored(NamedTuple):
    """The checkpoint directory holds the checkpoint for `attempt`, or could not be prepared (`problem`)."""

    attempt: int
    problem: str = ""
    checkpoint: Optional[str] = None  # as in TaskState


class Held(NamedTuple):
    """The process of `attempt` waits at its gate."""

    attempt: int


class Reached(NamedTuple):
    """The ports of the other slots were visited; `found` has why one cannot be reached, empty where it can."""

    attempt: int
    found: Dict[str, str]


class Exited(NamedTuple):
    """The process of `attempt` ended; `reason` where its agent knows more than the exit tells."""

    attempt: int
    exit: Exit
    reason: str = ""


class Closed(NamedTuple):
    """Nothing is left of the processes of `attempt`, and all that they wrote is stored."""

    attempt: int


class Failed(NamedTuple):
    """This host cannot do what `attempt` needs."""

    attempt: int
    reason: str


class Pulse(NamedTuple):
    """How long the task has been quiet and idle, in seconds, and whether it told of a step."""

    attempt: int
    quiet_s: float
    idle_s: float
    stepped: bool


class Looked(NamedTuple):
    """What the task does, as order `look` wanted to know."""

    attempt: int
    look: int
    stalled: Optional[Stalled]


class Holds(NamedTuple):
    """The newest complete checkpoint of this host, and where it can be fetched."""

    snapshot: Optional[Snapshot]
    source: Optional[Source]


class Preempted(NamedTuple):
    """The cloud is about to take this host."""


SlotEvent = Union[Order, Reserved, Restored, Held, Reached, Exited, Closed, Failed, Pulse, Looked, Holds, Preempted]


class Reserve(NamedTuple):
    """Keep a port for the task of `attempt`."""

    attempt: int


class Restore(NamedTuple):
    """Make the checkpoint directory equal to a snapshot; None: empty."""

    attempt: int
    snapshot: Optional[Snapshot]
    sources: Tuple[Source, ...]


class Fetch(NamedTuple):
    """Keep a copy of a snapshot, in the background."""

    snapshot: Snapshot
    sources: Tuple[Source, ...]


class Spawn(NamedTuple):
    """Start the process of `attempt`, held at its gate; `members` by role, in their order."""

    attempt: int
    role: str
    members: Tuple[Member, ...]
    checkpoint: Optional[str] = None  # as in TaskState


class Visit(NamedTuple):
    """Find out which of the other slots' ports can be reached."""

    attempt: int
    others: Tuple[Member, ...]


class Open(NamedTuple):
    """Open the gate."""

    attempt: int


class Notify(NamedTuple):
    """Tell the user something."""

    attempt: int
    text: str


class Look(NamedTuple):
    """Find out what the task does."""

    attempt: int
    look: int


class EndTask(NamedTuple):
    """End the task: TERM, `grace_s` seconds, KILL."""

    attempt: int
    reason: str
    grace_s: float


class TellEnd(NamedTuple):
    """Write down that an attempt failed, and that there will be another."""

    ended: AttemptEnded


class Finish(NamedTuple):
    """The job is over; when, the one who carries it out knows by his clock."""

    result: JobResult


SlotAction = Union[Reserve, Restore, Fetch, Spawn, Visit, Open, Notify, Look, EndTask, TellEnd, Finish]


class Slot(NamedTuple):
    """Where a slot is; all but name, facts and checkpoint belong to `attempt`."""

    name: str
    order: Optional[Order] = None
    attempt: int = 0
    port: int = 0
    restored: bool = False
    checkpoint: Optional[str] = None
    held: bool = False
    reached: Optional[Dict[str, str]] = None
    exit: Optional[Exit] = None
    reason: str = ""
    closed: bool = True
    reserving: bool = False
    restoring: bool = False
    spawned: bool = False
    visiting: bool = False
    released: bool = False
    ending: Optional[float] = None  # with so much grace
    told_end: bool = False
    finished: bool = False
    notified: int = 0
    looking: int = 0
    pulse: Optional[Pulse] = None
    looked: int = 0
    stalled: Optional[Stalled] = None
    facts: Optional[Facts] = None
    address: str = ""
    link_port: int = 0
    snapshot: Optional[Snapshot] = None
    source: Optional[Source] = None
    fetching: Optional[Snapshot] = None
    stop: Optional[float] = None
    preempted: bool = False


Step = Tuple[Slot, List[SlotAction]]
_COPYING = (Stage.GO, Stage.STOP, Stage.WAIT)


def step(slot: Slot, event: SlotEvent) -> Step:
    """What becomes of the slot by `event`, and what is to be done; news of another attempt change nothing."""
    if slot.finished:
        return slot, []
    if isinstance(event, Order):
        slot = _ordered(slot, event)
    elif isinstance(event, Holds):
        slot = slot._replace(snapshot=event.snapshot, source=event.source)
    elif isinstance(event, Preempted):
        slot = slot._replace(preempted=True)
    elif event.attempt == slot.attempt:
        slot = _told(slot, event)
    return _pursue(slot)


def report(slot: Slot) -> Report:
    """What the slot tells of itself."""
    pulse = slot.pulse or Pulse(slot.attempt, 0.0, 0.0, False)
    return Report(
        slot=slot.name,
        attempt=slot.attempt,
        port=slot.port,
        held=slot.held,
        reached=slot.reached,
        exit=slot.exit,
        reason=slot.reason,
        closed=slot.closed,
        facts=slot.facts,
        address=slot.address,
        link_port=slot.link_port,
        snapshot=slot.snapshot,
        source=slot.source,
        stop=slot.stop,
        quiet_s=pulse.quiet_s,
        idle_s=pulse.idle_s,
        stepped=pulse.stepped,
        looked=slot.looked,
        stalled=slot.stalled,
        preempted=slot.preempted,
    )


def is_alive(slot: Slot) -> bool:
    """Whether anything of the task may be left."""
    return slot.spawned and not slot.closed


def _ordered(slot: Slot, order: Order) -> Slot:
    slot = slot._replace(order=order)
    return slot if is_alive(slot) else _turn_to(slot, order.attempt)


def _turn_to(slot: Slot, attempt: int) -> Slot:
    if attempt <= slot.attempt:
        return slot
    return Slot(
        slot.name,
        slot.order,
        attempt,
        facts=slot.facts,
        address=slot.address,
        link_port=slot.link_port,
        snapshot=slot.snapshot,
        source=slot.source,
        fetching=slot.fetching,
        stop=slot.stop,
        preempted=slot.preempted,
    )


def _told(slot: Slot, event: SlotEvent) -> Slot:
    if isinstance(event, Reserved):
        slot = slot._replace(port=event.port, reserving=False)
    elif isinstance(event, Restored):
        slot = slot._replace(restored=not event.problem, restoring=False, reason=slot.reason or event.problem)
        slot = slot._replace(checkpoint=event.checkpoint)
    elif isinstance(event, Failed):
        slot = slot._replace(reason=slot.reason or event.reason, reserving=False, restoring=False)
    elif isinstance(event, Held):
        slot = slot._replace(held=True)
    else:
        slot = _seen(slot, event)
    return slot


def _seen(slot: Slot, event: SlotEvent) -> Slot:
    if isinstance(event, Reached):
        slot = slot._replace(reached=event.found)
    elif isinstance(event, Exited):
        slot = slot._replace(exit=event.exit, reason=slot.reason or event.reason)
    elif isinstance(event, Closed):
        slot = slot._replace(closed=True)
        if slot.order is not None:
            slot = _turn_to(slot, slot.order.attempt)
    elif isinstance(event, Pulse):
        slot = slot._replace(pulse=event, stalled=None)
    elif isinstance(event, Looked):
        slot = slot._replace(looked=event.look, stalled=event.stalled)
    return slot


def _pursue(slot: Slot) -> Step:
    order = slot.order
    if order is None:
        return slot, []
    over = order.attempt != slot.attempt or order.stage in (Stage.STOP, Stage.WAIT, Stage.RESULT)
    if is_alive(slot) and not over:
        return _carry_on(slot, order)
    if over:
        slot, actions = _wind_up(slot, order) if is_alive(slot) else _look_back(slot, order)
        slot, more = _pass_on(slot, order)
        return slot, [*more, *actions]
    return _make_ready(slot, order) if order.role_of(slot.name) and not slot.reason else _keep_up(slot, order)


def _wind_up(slot: Slot, order: Order) -> Step:
    same = order.attempt == slot.attempt
    grace_s = order.grace_s if same else 0.0
    if slot.exit is not None or (slot.ending is not None and grace_s >= slot.ending):
        return slot, []
    reason = order.reason if same else f"attempt {order.attempt} begins"
    return slot._replace(ending=grace_s), [EndTask(slot.attempt, reason, grace_s)]


def _look_back(slot: Slot, order: Order) -> Step:
    if order.stage is Stage.RESULT and order.result is not None:
        return slot._replace(finished=True), [Finish(order.result)]
    if order.stage is not Stage.WAIT or order.attempt != slot.attempt or slot.told_end:
        return slot, []
    exits = {order.name_of(name): ended for name, ended in order.exits.items()}
    first = order.name_of(order.first)
    ended = AttemptEnded(slot.name, order.attempt, 0.0, first, order.reason, exits, order.retry_s)
    ended = ended._replace(preempted=order.preempted)
    return slot._replace(told_end=True), [TellEnd(ended)] if order.role_of(slot.name) else []


def _make_ready(slot: Slot, order: Order) -> Step:
    if order.stage is Stage.RESERVE:
        if slot.port or slot.reserving:
            return slot, []
        return slot._replace(reserving=True), [Reserve(slot.attempt)]
    if slot.spawned or slot.restoring:
        return slot, []
    if not slot.port:  # it has come in the middle, in the place of one whose loss is not noticed yet
        return _keep_up(slot, order)
    if not slot.restored:
        return slot._replace(restoring=True), [Restore(slot.attempt, order.snapshot, tuple(order.sources))]
    roles = tuple(member._replace(task=order.role_of(member.task)) for member in order.members)
    spawn = Spawn(slot.attempt, order.role_of(slot.name), roles, slot.checkpoint)
    return slot._replace(spawned=True, closed=False), [spawn]


def _carry_on(slot: Slot, order: Order) -> Step:
    actions: List[SlotAction] = []
    if order.stage is Stage.CHECK and slot.held and not slot.visiting:
        slot = slot._replace(visiting=True)
        others = tuple(member for member in order.members if member.task != slot.name)
        actions.append(Visit(slot.attempt, others))
    if order.stage is Stage.GO and slot.held and not slot.released:
        slot = slot._replace(released=True)
        actions.append(Open(slot.attempt))
    if order.stage is Stage.GO and order.look > slot.looking:
        slot = slot._replace(looking=order.look)
        actions.append(Look(slot.attempt, order.look))
    slot, more = _pass_on(slot, order)
    return slot, [*actions, *more]


def _pass_on(slot: Slot, order: Order) -> Step:
    """Tell what the user ought to know of this attempt, and copy what is to be copied."""
    texts = order.notices[slot.notified :] if order.attempt == slot.attempt else []
    slot, more = _keep_up(slot._replace(notified=max(slot.notified, len(order.notices) if texts else 0)), order)
    return slot, [*(Notify(slot.attempt, text) for text in texts), *more]


def _keep_up(slot: Slot, order: Order) -> Step:
    """Copy the newest checkpoint while others, or this slot itself, train, and what was saved last."""
    wanted = order.snapshot
    known = newest(slot.snapshot, slot.fetching)
    if order.stage not in _COPYING or wanted is None or not order.sources or newest(known, wanted) == known:
        return slot, []
    return slot._replace(fetching=wanted), [Fetch(wanted, tuple(order.sources))]
