"""One seat of a gang, pure: pursues what the leader wants, whatever has been missed, and tells where it is.

A seat never begins an attempt before nothing is left of the one before.
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
    """The ports of the other seats were visited; `found` has why one cannot be reached, empty where it can."""

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


SeatEvent = Union[Order, Reserved, Restored, Held, Reached, Exited, Closed, Failed, Pulse, Looked, Holds, Preempted]


class Reserve(NamedTuple):
    """Keep a port for the task of `attempt`."""

    attempt: int


class Restore(NamedTuple):
    """Make the checkpoint folder equal to a snapshot; None: empty."""

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
    """Find out which of the other seats' ports can be reached."""

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


SeatAction = Union[Reserve, Restore, Fetch, Spawn, Visit, Open, Notify, Look, EndTask, TellEnd, Finish]


class Seat(NamedTuple):
    """Where a seat is; all but name, facts and checkpoint belong to `attempt`."""

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


Step = Tuple[Seat, List[SeatAction]]
_COPYING = (Stage.GO, Stage.STOP, Stage.WAIT)


def step(seat: Seat, event: SeatEvent) -> Step:
    """What becomes of the seat by `event`, and what is to be done; news of another attempt change nothing."""
    if seat.finished:
        return seat, []
    if isinstance(event, Order):
        seat = _ordered(seat, event)
    elif isinstance(event, Holds):
        seat = seat._replace(snapshot=event.snapshot, source=event.source)
    elif isinstance(event, Preempted):
        seat = seat._replace(preempted=True)
    elif event.attempt == seat.attempt:
        seat = _told(seat, event)
    return _pursue(seat)


def report(seat: Seat) -> Report:
    """What the seat tells of itself."""
    pulse = seat.pulse or Pulse(seat.attempt, 0.0, 0.0, False)
    return Report(
        seat=seat.name,
        attempt=seat.attempt,
        port=seat.port,
        held=seat.held,
        reached=seat.reached,
        exit=seat.exit,
        reason=seat.reason,
        closed=seat.closed,
        facts=seat.facts,
        address=seat.address,
        link_port=seat.link_port,
        snapshot=seat.snapshot,
        source=seat.source,
        stop=seat.stop,
        quiet_s=pulse.quiet_s,
        idle_s=pulse.idle_s,
        stepped=pulse.stepped,
        looked=seat.looked,
        stalled=seat.stalled,
        preempted=seat.preempted,
    )


def is_alive(seat: Seat) -> bool:
    """Whether anything of the task may be left."""
    return seat.spawned and not seat.closed


def _ordered(seat: Seat, order: Order) -> Seat:
    seat = seat._replace(order=order)
    return seat if is_alive(seat) else _turn_to(seat, order.attempt)


def _turn_to(seat: Seat, attempt: int) -> Seat:
    if attempt <= seat.attempt:
        return seat
    return Seat(
        seat.name,
        seat.order,
        attempt,
        facts=seat.facts,
        address=seat.address,
        link_port=seat.link_port,
        snapshot=seat.snapshot,
        source=seat.source,
        fetching=seat.fetching,
        stop=seat.stop,
        preempted=seat.preempted,
    )


def _told(seat: Seat, event: SeatEvent) -> Seat:
    if isinstance(event, Reserved):
        seat = seat._replace(port=event.port, reserving=False)
    elif isinstance(event, Restored):
        seat = seat._replace(restored=not event.problem, restoring=False, reason=seat.reason or event.problem)
        seat = seat._replace(checkpoint=event.checkpoint)
    elif isinstance(event, Failed):
        seat = seat._replace(reason=seat.reason or event.reason, reserving=False, restoring=False)
    elif isinstance(event, Held):
        seat = seat._replace(held=True)
    else:
        seat = _seen(seat, event)
    return seat


def _seen(seat: Seat, event: SeatEvent) -> Seat:
    if isinstance(event, Reached):
        seat = seat._replace(reached=event.found)
    elif isinstance(event, Exited):
        seat = seat._replace(exit=event.exit, reason=seat.reason or event.reason)
    elif isinstance(event, Closed):
        seat = seat._replace(closed=True)
        if seat.order is not None:
            seat = _turn_to(seat, seat.order.attempt)
    elif isinstance(event, Pulse):
        seat = seat._replace(pulse=event, stalled=None)
    elif isinstance(event, Looked):
        seat = seat._replace(looked=event.look, stalled=event.stalled)
    return seat


def _pursue(seat: Seat) -> Step:
    order = seat.order
    if order is None:
        return seat, []
    over = order.attempt != seat.attempt or order.stage in (Stage.STOP, Stage.WAIT, Stage.RESULT)
    if is_alive(seat) and not over:
        return _carry_on(seat, order)
    if over:
        seat, actions = _wind_up(seat, order) if is_alive(seat) else _look_back(seat, order)
        seat, more = _pass_on(seat, order)
        return seat, [*more, *actions]
    return _make_ready(seat, order) if order.role_of(seat.name) and not seat.reason else _keep_up(seat, order)


def _wind_up(seat: Seat, order: Order) -> Step:
    same = order.attempt == seat.attempt
    grace_s = order.grace_s if same else 0.0
    if seat.exit is not None or (seat.ending is not None and grace_s >= seat.ending):
        return seat, []
    reason = order.reason if same else f"attempt {order.attempt} begins"
    return seat._replace(ending=grace_s), [EndTask(seat.attempt, reason, grace_s)]


def _look_back(seat: Seat, order: Order) -> Step:
    if order.stage is Stage.RESULT and order.result is not None:
        return seat._replace(finished=True), [Finish(order.result)]
    if order.stage is not Stage.WAIT or order.attempt != seat.attempt or seat.told_end:
        return seat, []
    exits = {order.name_of(name): ended for name, ended in order.exits.items()}
    first = order.name_of(order.first)
    ended = AttemptEnded(seat.name, order.attempt, 0.0, first, order.reason, exits, order.retry_s)
    ended = ended._replace(preempted=order.preempted)
    return seat._replace(told_end=True), [TellEnd(ended)] if order.role_of(seat.name) else []


def _make_ready(seat: Seat, order: Order) -> Step:
    if order.stage is Stage.RESERVE:
        if seat.port or seat.reserving:
            return seat, []
        return seat._replace(reserving=True), [Reserve(seat.attempt)]
    if seat.spawned or seat.restoring:
        return seat, []
    if not seat.port:  # it has come in the middle, in the place of one whose loss is not noticed yet
        return _keep_up(seat, order)
    if not seat.restored:
        return seat._replace(restoring=True), [Restore(seat.attempt, order.snapshot, tuple(order.sources))]
    roles = tuple(member._replace(task=order.role_of(member.task)) for member in order.members)
    spawn = Spawn(seat.attempt, order.role_of(seat.name), roles, seat.checkpoint)
    return seat._replace(spawned=True, closed=False), [spawn]


def _carry_on(seat: Seat, order: Order) -> Step:
    actions: List[SeatAction] = []
    if order.stage is Stage.CHECK and seat.held and not seat.visiting:
        seat = seat._replace(visiting=True)
        others = tuple(member for member in order.members if member.task != seat.name)
        actions.append(Visit(seat.attempt, others))
    if order.stage is Stage.GO and seat.held and not seat.released:
        seat = seat._replace(released=True)
        actions.append(Open(seat.attempt))
    if order.stage is Stage.GO and order.look > seat.looking:
        seat = seat._replace(looking=order.look)
        actions.append(Look(seat.attempt, order.look))
    seat, more = _pass_on(seat, order)
    return seat, [*actions, *more]


def _pass_on(seat: Seat, order: Order) -> Step:
    """Tell what the user ought to know of this attempt, and copy what is to be copied."""
    texts = order.notices[seat.notified :] if order.attempt == seat.attempt else []
    seat, more = _keep_up(seat._replace(notified=max(seat.notified, len(order.notices) if texts else 0)), order)
    return seat, [*(Notify(seat.attempt, text) for text in texts), *more]


def _keep_up(seat: Seat, order: Order) -> Step:
    """Copy the newest checkpoint while others, or this seat itself, train, and what was saved last."""
    wanted = order.snapshot
    known = newest(seat.snapshot, seat.fetching)
    if order.stage not in _COPYING or wanted is None or not order.sources or newest(known, wanted) == known:
        return seat, []
    return seat._replace(fetching=wanted), [Fetch(wanted, tuple(order.sources))]
