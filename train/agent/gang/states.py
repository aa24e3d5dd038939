"""What the leader of a gang wants, and what a slot tells of itself: each time all of it, so that none can be missed.

A *slot* is a host's place in the job, under the name of the host; a *role* is the task of TensorFlow that a slot
plays in one attempt. The names are the same until a host is lost, unless roles were assigned: then people know the
tasks by their roles.
"""

import json
from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional, Type, Union

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang.readiness import Facts
from train.agent.protocol.records import (
    Exit,
    JobResult,
    Member,
    Stalled,
    build,
    to_dict,
)
from train.agent.protocol.strict_json import parse_json


class Stage(str, Enum):
    """How far an attempt is, in this order."""

    RESERVE = "reserve"  # a port on each host
    LAUNCH = "launch"  # checkpoints as they ought to be, the process held at its gate
    CHECK = "check"  # whether all reach all
    GO = "go"
    STOP = "stop"
    WAIT = "wait"  # nothing runs; for the time and the hosts of the next attempt
    RESULT = "result"


class Part(NamedTuple):
    """Who plays which role."""

    slot: str
    role: str


class Source(NamedTuple):
    """Where a checkpoint can be fetched."""

    address: str
    port: int


class Order(NamedTuple):
    """What the leader wants now."""

    term: int  # of the leader; a later one knows better
    leader: str
    attempt: int
    stage: Stage
    cast: List[Part]
    members: List[Member]  # by slot, with the ports of this attempt, in the order of `cast`
    restarts: int = 0  # that were used up
    preemptions: int = 0  # that were survived
    started: bool = False  # whether any user code ever ran
    snapshot: Optional[Snapshot] = None  # the newest complete checkpoint of all hosts
    sources: List[Source] = []  # noqa: RUF012 - never changed; of that checkpoint
    reason: str = ""
    first: str = ""  # slot that failed first
    preempted: bool = False  # its host was taken, or is gone, which is no failure of the job
    grace_s: float = 0.0
    exits: Dict[str, Exit] = {}  # noqa: RUF012 - never changed; by slot
    retry_s: float = 0.0
    notices: List[str] = []  # noqa: RUF012 - never changed; all of this attempt
    look: int = 0  # number of the order to look what the tasks are doing
    result: Optional[JobResult] = None
    by_role: bool = False  # people know the tasks by their roles, not by their slots
    trained: bool = False  # all that the job's success depends on is done

    @property
    def running(self) -> bool:
        """Whether an attempt is under way."""
        return self.stage in (Stage.RESERVE, Stage.LAUNCH, Stage.CHECK, Stage.GO)

    def role_of(self, slot: str) -> str:
        """The role of a slot; empty where it has none."""
        return next((part.role for part in self.cast if part.slot == slot), "")

    def name_of(self, slot: str) -> str:
        """How people know the task of a slot."""
        return (self.role_of(slot) if self.by_role else "") or slot


class Report(NamedTuple):
    """What a slot tells of itself."""

    slot: str
    attempt: int = 0  # to which the following belong
    port: int = 0
    held: bool = False  # at its gate
    reached: Optional[Dict[str, str]] = None  # why the port of another slot cannot be reached; empty where it can
    exit: Optional[Exit] = None
    reason: str = ""  # what its agent knows beyond the exit
    closed: bool = True  # no process of the attempt is left, or was ever there
    facts: Optional[Facts] = None
    clock: float = 0.0  # of its host, seconds since the epoch
    address: str = ""  # by which the other hosts reach it now
    link_port: int = 0
    snapshot: Optional[Snapshot] = None  # the newest that this host holds
    source: Optional[Source] = None  # where it can be fetched
    stop: Optional[float] = None  # somebody on this host wants the job to end, with so much grace
    quiet_s: float = 0.0  # since the task last wrote anything
    idle_s: float = 0.0  # since its processes last did anything
    stepped: bool = False  # it has told of a step
    looked: int = 0
    stalled: Optional[Stalled] = None
    preempted: bool = False  # the cloud is about to take its host
    term: int = 0  # of the leader whom the sender follows, as far as it knows


class Leads(NamedTuple):
    """Who leads, as far as the sender knows."""

    term: int
    leader: str  # empty: not known
    running: bool = False  # an attempt of his is under way


Message = Union[Order, Report, Leads]

_KINDS: Dict[str, Type[Any]] = {"order": Order, "report": Report, "leads": Leads}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_wire(message: Message) -> Dict[str, Any]:
    """A message as an object of plain JSON values."""
    return {_NAMES[type(message)]: to_dict(message)}


def from_wire(values: Dict[str, Any]) -> Optional[Message]:
    """The message that an object holds; None where it is none of these.

    Raises:
        MalformedRecordError: it is one, and cannot be read.
    """
    for name, kind in _KINDS.items():
        if name in values:
            message: Message = build(kind, values[name])
            return message
    return None


def to_line(order: Order) -> bytes:
    """An order as one line of JSON."""
    return json.dumps(to_dict(order), separators=(",", ":")).encode()


def from_line(line: bytes) -> Order:
    """The order of such a line.

    Raises:
        MalformedRecordError: it is none.
    """
    order: Order = build(Order, parse_json(line))
    return order
