"""The messages between the leader and the slots of a gang. Each one carries the whole state, so any may be lost.

A *slot* is a host's place in the fleet. A *task* is the type and index in the cluster that an attempt assigns to it.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Type, Union

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang.readiness import ReadinessFacts
from train.agent.protocol import records
from train.agent.protocol.records import NO_REASON, Member, Reason, build, to_dict
from train.agent.protocol.strict_json import parse_json

if TYPE_CHECKING:
    from typing import TypeAlias

_START_DELAY_MAX_S = 1.0
_START_S_PER_SLOT = 0.004  # to send and read the messages; measured with 64 hosts that share two cores


def start_delay_s(count: int, check_s: float) -> float:
    """Return the time from the decision to start until the common start time of `count` tasks.

    The leader cannot reach all hosts at the same time, and each takes a while to read its message.

    Args:
        count: Number of the tasks.
        check_s: Duration of the check of their ports, for which each host received a message, did more than it
            does for the start, and answered.
    """
    return 0.0 if count < 2 else min(check_s / 2, count * _START_S_PER_SLOT, _START_DELAY_MAX_S)


class Stage(str, Enum):
    """The stages of an attempt, in order."""

    QUEUE = "queue"  # of the first attempt: earlier jobs still hold the hosts
    RESERVE = "reserve"  # reserve a port on each host
    LAUNCH = "launch"  # restore checkpoints, start the process, hold it at its gate
    CHECK = "check"  # probe the task ports
    GO = "go"
    STOP = "stop"
    WAIT = "wait"  # nothing runs; wait for the back-off and the hosts of the next attempt
    RESULT = "result"


class Source(NamedTuple):
    """An address from which a checkpoint can be fetched."""

    address: str
    port: int


class DesiredState(NamedTuple):
    """The state that all slots have to reach, set by the leader."""

    term: int  # of the leader; a later term overrides an earlier one
    leader: str
    attempt: int
    stage: Stage
    members: List[Member]  # of this attempt, with its ports, in the order of their tasks
    restarts: int = 0  # restarts used so far
    preemptions: int = 0  # preemptions tolerated so far
    started: bool = False  # True if user code ever ran
    snapshot: Optional[Snapshot] = None  # newest complete checkpoint of all hosts
    sources: List[Source] = []  # sources of that checkpoint
    reason: Reason = NO_REASON
    first_failed_slot: str = ""
    preempted: bool = False  # the host of that slot was lost, which is not a failure of the job
    grace_s: float = 0.0
    ended: Optional[records.AttemptEnded] = None  # in the stage `wait`, to be completed with the slot that reports it
    notices: List[str] = []  # all notices of this attempt
    inspection: int = 0  # number of the latest inspection of the tasks
    result: Optional[records.JobResult] = None
    trained: bool = False  # all tasks that decide the job's success have succeeded
    start_delay_s: float = 0.0  # from the decision to start until `start_at`
    start_at: float = 0.0  # in the stage `go`: common start time, seconds since the epoch; 0: at once
    joined: List[Member] = []  # slots that joined the running job, without their tasks

    @property
    def running(self) -> bool:
        """Return True if an attempt is in progress."""
        return self.stage in (Stage.RESERVE, Stage.LAUNCH, Stage.CHECK, Stage.GO)

    def time_to_start_s(self, now: float) -> float:
        """Return the time until the start of the tasks; clocks that differ change it by at most the start delay."""
        return max(0.0, min(self.start_at - now, self.start_delay_s))

    def task_of(self, slot: str) -> str:
        """Return the task of a slot, or an empty string if it has none."""
        return next((member.task for member in self.members if member.slot == slot), "")

    def display_name(self, slot: str) -> str:
        """Return the name of a slot in messages to the user: its task, if it has one."""
        return self.task_of(slot) or slot


class SlotStatus(NamedTuple):
    """The status that a slot reports to the leader."""

    slot: str
    attempt: int = 0  # attempt of the fields below
    port: int = 0
    held: bool = False  # at its gate
    probe_results: Optional[Dict[str, str]] = None  # slot -> error; empty if its port is reachable
    exit: Optional[records.Exit] = None
    reason: Reason = NO_REASON  # what the agent knows beyond the exit status
    closed: bool = True  # no process of the attempt exists
    facts: Optional[ReadinessFacts] = None
    clock: float = 0.0  # time of the host, seconds since the epoch
    address: str = ""  # at which the other hosts reach it now
    link_port: int = 0
    snapshot: Optional[Snapshot] = None  # newest complete checkpoint on this host
    source: Optional[Source] = None  # where it can be fetched
    stop_grace_s: Optional[float] = None  # grace period of a stop request on this host
    quiet_s: float = 0.0  # since the last output of the task
    idle_s: float = 0.0  # since its processes last used the CPU
    inactive_s: float = 0.0  # since its last output, step, or use of a CPU or GPU
    stepped: bool = False  # it reported a training step
    inspected: int = 0
    hang: Optional[records.HangInspection] = None
    preempted: bool = False  # the cloud provider is about to take its host
    end_at: Optional[float] = None  # its jobs must have ended: monotonic clock; in a message, seconds from now
    queued: bool = False  # an earlier job holds its host
    term: int = 0  # of the leader that the sender follows


class LeaderClaim(NamedTuple):
    """The leader that the sender knows."""

    term: int
    leader: str  # empty: unknown
    running: bool = False  # an attempt of this leader is in progress


Message: TypeAlias = "Union[DesiredState, SlotStatus, LeaderClaim]"

_KINDS: Dict[str, Type[Any]] = {"desired_state": DesiredState, "slot_status": SlotStatus, "leader_claim": LeaderClaim}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_wire(message: Message) -> Dict[str, Any]:
    """Return a message as an object of plain JSON values."""
    return {_NAMES[type(message)]: to_dict(message)}


def from_wire(values: Dict[str, Any]) -> Optional[Message]:
    """Return the message in an object, or None if the object contains none.

    Raises:
        MalformedRecordError: the message is malformed.
    """
    for name, kind in _KINDS.items():
        if name in values:
            message: Message = build(kind, values[name])
            return message
    return None


def to_line(state: DesiredState) -> bytes:
    """Return a desired state as one line of JSON."""
    return json.dumps(to_dict(state), separators=(",", ":")).encode()


def from_line(line: bytes) -> DesiredState:
    """Return the desired state in a line of JSON.

    Raises:
        MalformedRecordError: the line is malformed.
    """
    state: DesiredState = build(DesiredState, parse_json(line))
    return state
