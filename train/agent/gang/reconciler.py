"""Reconcile one slot with the desired state of the leader. A pure state machine that tolerates lost messages.

A slot starts an attempt only after all processes of the previous attempt have ended.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang.readiness import ReadinessFacts, probe_targets
from train.agent.gang.states import DesiredState, SlotStatus, Source, Stage
from train.agent.protocol import records
from train.agent.protocol.records import NO_REASON, Exit, HangInspection, JobResult, Member, Reason, ReasonKind

if TYPE_CHECKING:
    from typing import TypeAlias


class Reserved(NamedTuple):
    """A port is reserved for the task of `attempt`."""

    attempt: int
    port: int


class CheckpointRestored(NamedTuple):
    """The checkpoint directory was prepared for `attempt`, or could not be (`problem`)."""

    attempt: int
    problem: Reason = NO_REASON
    checkpoint: Optional[str] = None  # see TaskState


class HeldAtGate(NamedTuple):
    """The process of `attempt` waits at its gate."""

    attempt: int


class PortsProbed(NamedTuple):
    """The task ports of other slots were probed; `errors` maps each slot to its error, empty if reachable."""

    attempt: int
    errors: Dict[str, str]


class Exited(NamedTuple):
    """The process of `attempt` ended; `reason` is set if the agent knows more than the exit status shows."""

    attempt: int
    exit: Exit
    reason: Reason = NO_REASON


class Closed(NamedTuple):
    """Every process of `attempt` has ended, and all of their output is stored."""

    attempt: int


class Failed(NamedTuple):
    """This host cannot meet a requirement of `attempt`."""

    attempt: int
    reason: Reason


class TaskActivity(NamedTuple):
    """Seconds that the task has been quiet, idle, and inactive; the fields are those of the status."""

    attempt: int
    quiet_s: float
    idle_s: float
    stepped: bool
    inactive_s: float = 0.0


class TaskInspected(NamedTuple):
    """The result of inspection number `inspection`."""

    attempt: int
    inspection: int
    hang: Optional[HangInspection]


class CheckpointHeld(NamedTuple):
    """The newest complete checkpoint of this host, and the source from which it can be fetched."""

    snapshot: Optional[Snapshot]
    source: Optional[Source]


class Unqueued(NamedTuple):
    """No earlier job holds this host."""


class Claimed(NamedTuple):
    """This host is locked for the job; `facts` are those of now."""

    attempt: int
    port: int  # reserved for the task of `attempt`
    facts: Optional[ReadinessFacts] = None


class HostAnnounced(NamedTuple):
    """Announcements of the cloud provider about this host; the fields are those of the status."""

    preempted: bool
    end_at: Optional[float]  # None: jobs may run for ever


SlotEvent: TypeAlias = (
    "Union[DesiredState, Reserved, CheckpointRestored, HeldAtGate, PortsProbed, Exited, Closed, "
    "Failed, TaskActivity, TaskInspected, CheckpointHeld, Unqueued, Claimed, HostAnnounced]"
)


class Claim(NamedTuple):
    """Lock this host for the job, which was queued until now."""

    attempt: int


class Reserve(NamedTuple):
    """Reserve a port for the task of `attempt`."""

    attempt: int


class RestoreCheckpoint(NamedTuple):
    """Make the checkpoint directory equal to a snapshot; None means empty."""

    attempt: int
    snapshot: Optional[Snapshot]
    sources: Tuple[Source, ...]


class FetchCheckpoint(NamedTuple):
    """Copy a snapshot to this host in the background."""

    snapshot: Snapshot
    sources: Tuple[Source, ...]


class Spawn(NamedTuple):
    """Start the process of `attempt`, held at its gate; `members` are in the order of their tasks."""

    attempt: int
    task: str
    members: Tuple[Member, ...]
    checkpoint: Optional[str] = None  # see TaskState


class ProbePorts(NamedTuple):
    """Probe the task ports of other slots."""

    attempt: int
    others: Tuple[Member, ...]


class OpenGate(NamedTuple):
    """Let the task run."""

    attempt: int


class Notify(NamedTuple):
    """Send a notice to the user."""

    attempt: int
    text: str


class InspectTask(NamedTuple):
    """Inspect what the task is doing."""

    attempt: int
    inspection: int


class EndTask(NamedTuple):
    """End the task: SIGTERM, then SIGKILL after `grace_s` seconds."""

    attempt: int
    reason: str
    grace_s: float


class CopyUnlimited(NamedTuple):
    """Copy checkpoints without a limit of the bandwidth from now on."""


class ReportAttemptEnd(NamedTuple):
    """Record that an attempt failed and that another one follows."""

    ended: records.AttemptEnded


class Finish(NamedTuple):
    """End the job. The supervisor adds the time to the result."""

    result: JobResult


SlotAction: TypeAlias = (
    "Union[Claim, Reserve, RestoreCheckpoint, FetchCheckpoint, Spawn, ProbePorts, "
    "OpenGate, Notify, InspectTask, EndTask, CopyUnlimited, ReportAttemptEnd, Finish]"
)


class Work(NamedTuple):
    """The work on one attempt: actions that were performed, and their results that the leader does not need."""

    reserving: bool = False
    restoring: bool = False
    restored: bool = False
    checkpoint: Optional[str] = None  # see TaskState
    spawned: bool = False
    probing: bool = False
    released: bool = False
    inspecting: int = 0  # number of the latest inspection that was requested
    notices_sent: int = 0
    ending_grace_s: Optional[float] = None  # grace period with which the task is being ended
    end_reported: bool = False
    unlimited: bool = False  # copies have no limit of the bandwidth


class Claims(str, Enum):
    """States of the lock that a job requires on its host."""

    NONE = "none"  # the job is queued
    REQUESTED = "requested"
    HELD = "held"


class Slot(NamedTuple):
    """The state of a slot."""

    status: SlotStatus  # as it is reported to the leader
    desired: Optional[DesiredState] = None
    work: Work = Work()
    fetching: Optional[Snapshot] = None
    claim: Claims = Claims.HELD
    finished: bool = False

    @property
    def name(self) -> str:
        """Return the name of the slot."""
        return self.status.slot

    @property
    def attempt(self) -> int:
        """Return the attempt that the slot works on."""
        return self.status.attempt


Step: TypeAlias = "Tuple[Slot, List[SlotAction]]"
# Fields of the status that do not belong to an attempt.
_OF_HOST = (
    "facts", "address", "link_port", "snapshot", "source", "stop_grace_s", "queued", *HostAnnounced._fields,
)  # fmt: skip
_COPYING = (Stage.GO, Stage.STOP, Stage.WAIT)


def queued(slot: Slot) -> Slot:
    """Return the slot of a job that waits for an earlier one: its port is reported when the host is locked for it."""
    return update_status(slot._replace(claim=Claims.NONE), queued=True, port=0)


def step(slot: Slot, event: SlotEvent) -> Step:
    """Return the slot after `event`, and the actions to perform. Events of another attempt change nothing."""
    if slot.finished:
        return slot, []
    if isinstance(event, DesiredState):
        slot = _accept_desired_state(slot, event)
    elif isinstance(event, (CheckpointHeld, HostAnnounced)):
        slot = update_status(slot, **event._asdict())
    elif isinstance(event, Unqueued):
        slot = update_status(slot, queued=False)
    elif isinstance(event, Claimed):
        slot = _apply_claimed(slot, event)
    elif event.attempt == slot.attempt:
        slot = _TRANSITIONS[type(event)](slot, event)
    return _reconcile(slot)


def update_status(slot: Slot, **changes: Any) -> Slot:
    """Return the slot with other values in its status."""
    return slot._replace(status=slot.status._replace(**changes))


def is_alive(slot: Slot) -> bool:
    """Return True if processes of the task may still exist."""
    return slot.work.spawned and not slot.status.closed


def _update_work(slot: Slot, **changes: Any) -> Slot:
    return slot._replace(work=slot.work._replace(**changes))


def _accept_desired_state(slot: Slot, desired: DesiredState) -> Slot:
    slot = slot._replace(desired=desired)
    return slot if is_alive(slot) else _begin_attempt(slot, desired.attempt)


def _begin_attempt(slot: Slot, attempt: int) -> Slot:
    if attempt <= slot.attempt:
        return slot
    status = SlotStatus(slot.name, attempt, **{name: getattr(slot.status, name) for name in _OF_HOST})
    return slot._replace(status=status, work=Work())


def _fail(slot: Slot, reason: Reason) -> Slot:
    """Return the slot with the reason of a failure; the first one counts."""
    return update_status(slot, reason=slot.status.reason or reason)


def _apply_claimed(slot: Slot, event: Claimed) -> Slot:
    slot = update_status(slot._replace(claim=Claims.HELD), queued=False, facts=event.facts or slot.status.facts)
    return update_status(slot, port=event.port) if event.attempt == slot.attempt else slot


def _apply_restored(slot: Slot, event: CheckpointRestored) -> Slot:
    slot = _update_work(slot, restored=not event.problem, restoring=False, checkpoint=event.checkpoint)
    return _fail(slot, event.problem)


def _apply_closed(slot: Slot, _: Closed) -> Slot:
    slot = update_status(slot, closed=True)
    return slot if slot.desired is None else _begin_attempt(slot, slot.desired.attempt)


_TRANSITIONS: Dict[type, Callable[[Slot, Any], Slot]] = {
    Reserved: lambda slot, event: update_status(_update_work(slot, reserving=False), port=event.port),
    CheckpointRestored: _apply_restored,
    Failed: lambda slot, event: _fail(_update_work(slot, reserving=False, restoring=False), event.reason),
    HeldAtGate: lambda slot, _: update_status(slot, held=True),
    PortsProbed: lambda slot, event: update_status(slot, probe_results=event.errors),
    Exited: lambda slot, event: _fail(update_status(slot, exit=event.exit), event.reason),
    Closed: _apply_closed,
    TaskActivity: lambda slot, event: update_status(slot, hang=None, **event._asdict()),
    TaskInspected: lambda slot, event: update_status(slot, inspected=event.inspection, hang=event.hang),
}


def _reconcile(slot: Slot) -> Step:
    desired = slot.desired
    if desired is None:
        return slot, []
    over = desired.attempt != slot.attempt or desired.stage in (Stage.STOP, Stage.WAIT, Stage.RESULT)
    if is_alive(slot) and not over:
        return _advance_task(slot, desired)
    if over:
        slot, actions = _stop_task(slot, desired) if is_alive(slot) else _report_end(slot, desired)
        slot, more = _forward_notices(slot, desired)
        slot, first = _hurry(slot, desired)
        return slot, [*first, *more, *actions]
    if desired.stage is Stage.QUEUE:
        return slot, []
    if slot.claim is not Claims.HELD:
        claims = [Claim(slot.attempt)] if slot.claim is Claims.NONE else []
        return slot._replace(claim=Claims.REQUESTED), list(claims)
    has_task = desired.task_of(slot.name) and not slot.status.reason
    return _prepare_task(slot, desired) if has_task else _copy_checkpoint(slot, desired)


def _stop_task(slot: Slot, desired: DesiredState) -> Step:
    same = desired.attempt == slot.attempt
    grace_s = desired.grace_s if same else 0.0
    if slot.status.exit is not None or (slot.work.ending_grace_s is not None and grace_s >= slot.work.ending_grace_s):
        return slot, []
    reason = desired.reason.text if same else f"attempt {desired.attempt} begins"
    return _update_work(slot, ending_grace_s=grace_s), [EndTask(slot.attempt, reason, grace_s)]


def _hurry(slot: Slot, desired: DesiredState) -> Step:
    """Copy the last checkpoint as fast as possible if the hosts power off soon."""
    if desired.stage is not Stage.STOP or desired.reason.kind is not ReasonKind.LIFETIME or slot.work.unlimited:
        return slot, []
    return _update_work(slot, unlimited=True), [CopyUnlimited()]


def _report_end(slot: Slot, desired: DesiredState) -> Step:
    if desired.stage is Stage.RESULT and desired.result is not None:
        return slot._replace(finished=True), [Finish(desired.result)]
    if desired.ended is None or desired.attempt != slot.attempt or slot.work.end_reported:
        return slot, []
    ended = ReportAttemptEnd(desired.ended._replace(slot=slot.name))
    return _update_work(slot, end_reported=True), [ended] if desired.task_of(slot.name) else []


def _prepare_task(slot: Slot, desired: DesiredState) -> Step:
    if desired.stage is Stage.RESERVE:
        if slot.status.port or slot.work.reserving:
            return slot, []
        return _update_work(slot, reserving=True), [Reserve(slot.attempt)]
    if slot.work.spawned or slot.work.restoring:
        return slot, []
    if not slot.status.port:  # it replaces a slot whose loss the leader has not noticed yet
        return _copy_checkpoint(slot, desired)
    if not slot.work.restored:
        restore = RestoreCheckpoint(slot.attempt, desired.snapshot, tuple(desired.sources))
        return _update_work(slot, restoring=True), [restore]
    spawn = Spawn(slot.attempt, desired.task_of(slot.name), tuple(desired.members), slot.work.checkpoint)
    return update_status(_update_work(slot, spawned=True), closed=False), [spawn]


def _advance_task(slot: Slot, desired: DesiredState) -> Step:
    actions: List[SlotAction] = []
    if desired.stage is Stage.CHECK and slot.status.held and not slot.work.probing:
        slot = _update_work(slot, probing=True)
        actions.append(ProbePorts(slot.attempt, probe_targets(desired.members, slot.name)))
    if desired.stage is Stage.GO and slot.status.held and not slot.work.released:
        slot = _update_work(slot, released=True)
        actions.append(OpenGate(slot.attempt))
    if desired.stage is Stage.GO and desired.inspection > slot.work.inspecting:
        slot = _update_work(slot, inspecting=desired.inspection)
        actions.append(InspectTask(slot.attempt, desired.inspection))
    slot, more = _forward_notices(slot, desired)
    return slot, [*actions, *more]


def _forward_notices(slot: Slot, desired: DesiredState) -> Step:
    """Forward new notices of this attempt to the user, and copy checkpoints."""
    new_notices = desired.notices[slot.work.notices_sent :] if desired.attempt == slot.attempt else []
    slot = _update_work(slot, notices_sent=slot.work.notices_sent + len(new_notices))
    slot, more = _copy_checkpoint(slot, desired)
    return slot, [*(Notify(slot.attempt, text) for text in new_notices), *more]


def _copy_checkpoint(slot: Slot, desired: DesiredState) -> Step:
    """Copy the newest checkpoint while an attempt runs or ends."""
    snapshot, held = desired.snapshot, newest(slot.status.snapshot, slot.fetching)
    if desired.stage not in _COPYING or snapshot is None or not desired.sources or newest(held, snapshot) == held:
        return slot, []
    return slot._replace(fetching=snapshot), [FetchCheckpoint(snapshot, tuple(desired.sources))]
