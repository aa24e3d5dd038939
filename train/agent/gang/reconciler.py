"""Reconcile one slot with the desired state of the leader. A pure state machine that tolerates lost messages.

A slot starts an attempt only after all processes of the previous attempt have ended.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang.readiness import Facts
from train.agent.gang.states import DesiredState, SlotStatus, Source, Stage
from train.agent.protocol.records import NO_REASON, AttemptEnded, Exit, HangInspection, JobResult, Member, Reason


class Reserved(NamedTuple):
    """A port is reserved for the task of `attempt`."""

    attempt: int
    port: int


class Restored(NamedTuple):
    """The checkpoint directory was prepared for `attempt`, or could not be (`problem`)."""

    attempt: int
    problem: Reason = NO_REASON
    checkpoint: Optional[str] = None  # see TaskState


class HeldAtGate(NamedTuple):
    """The process of `attempt` waits at its gate."""

    attempt: int


class PortsProbed(NamedTuple):
    """The task ports of the other slots were probed; `errors` maps each slot to its error, empty if reachable."""

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
    """Seconds that the task has been quiet and idle; `stepped` if it reported a training step."""

    attempt: int
    quiet_s: float
    idle_s: float
    stepped: bool


class TaskInspected(NamedTuple):
    """The result of inspection number `inspection`."""

    attempt: int
    inspection: int
    hang: Optional[HangInspection]


class CheckpointHeld(NamedTuple):
    """The newest complete checkpoint of this host, and the source from which it can be fetched."""

    snapshot: Optional[Snapshot]
    source: Optional[Source]


class Preempted(NamedTuple):
    """The cloud provider is about to take this host."""


SlotEvent = Union[
    DesiredState,
    Reserved,
    Restored,
    HeldAtGate,
    PortsProbed,
    Exited,
    Closed,
    Failed,
    TaskActivity,
    TaskInspected,
    CheckpointHeld,
    Preempted,
]


class Reserve(NamedTuple):
    """Reserve a port for the task of `attempt`."""

    attempt: int


class Restore(NamedTuple):
    """Make the checkpoint directory equal to a snapshot; None means empty."""

    attempt: int
    snapshot: Optional[Snapshot]
    sources: Tuple[Source, ...]


class Fetch(NamedTuple):
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
    """Probe the task ports of the other slots."""

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


class ReportAttemptEnd(NamedTuple):
    """Record that an attempt failed and that another one follows."""

    ended: AttemptEnded


class Finish(NamedTuple):
    """End the job. The supervisor adds the time to the result."""

    result: JobResult


SlotAction = Union[
    Reserve, Restore, Fetch, Spawn, ProbePorts, OpenGate, Notify, InspectTask, EndTask, ReportAttemptEnd, Finish
]


class Slot(NamedTuple):
    """The state of a slot; all fields but name, facts, address, ports, and checkpoints belong to `attempt`."""

    name: str
    desired: Optional[DesiredState] = None
    attempt: int = 0
    port: int = 0
    restored: bool = False
    checkpoint: Optional[str] = None
    held: bool = False
    probe_results: Optional[Dict[str, str]] = None
    exit: Optional[Exit] = None
    reason: Reason = NO_REASON
    closed: bool = True
    reserving: bool = False
    restoring: bool = False
    spawned: bool = False
    probing: bool = False
    released: bool = False
    ending_grace_s: Optional[float] = None  # grace period with which the task is being ended
    end_reported: bool = False
    finished: bool = False
    notices_sent: int = 0
    inspecting: int = 0
    activity: Optional[TaskActivity] = None
    inspected: int = 0
    hang: Optional[HangInspection] = None
    facts: Optional[Facts] = None
    address: str = ""
    link_port: int = 0
    snapshot: Optional[Snapshot] = None
    source: Optional[Source] = None
    fetching: Optional[Snapshot] = None
    stop_grace_s: Optional[float] = None
    preempted: bool = False


Step = Tuple[Slot, List[SlotAction]]
_COPYING = (Stage.GO, Stage.STOP, Stage.WAIT)


def step(slot: Slot, event: SlotEvent) -> Step:
    """Return the slot after `event`, and the actions to perform. Events of another attempt change nothing."""
    if slot.finished:
        return slot, []
    if isinstance(event, DesiredState):
        slot = _accept_desired_state(slot, event)
    elif isinstance(event, CheckpointHeld):
        slot = slot._replace(snapshot=event.snapshot, source=event.source)
    elif isinstance(event, Preempted):
        slot = slot._replace(preempted=True)
    elif event.attempt == slot.attempt:
        slot = _apply_event(slot, event)
    return _reconcile(slot)


def build_status(slot: Slot) -> SlotStatus:
    """Return the status to report to the leader."""
    activity = slot.activity or TaskActivity(slot.attempt, 0.0, 0.0, False)
    return SlotStatus(
        slot=slot.name,
        attempt=slot.attempt,
        port=slot.port,
        held=slot.held,
        probe_results=slot.probe_results,
        exit=slot.exit,
        reason=slot.reason,
        closed=slot.closed,
        facts=slot.facts,
        address=slot.address,
        link_port=slot.link_port,
        snapshot=slot.snapshot,
        source=slot.source,
        stop_grace_s=slot.stop_grace_s,
        quiet_s=activity.quiet_s,
        idle_s=activity.idle_s,
        stepped=activity.stepped,
        inspected=slot.inspected,
        hang=slot.hang,
        preempted=slot.preempted,
    )


def is_alive(slot: Slot) -> bool:
    """Return True if processes of the task may still exist."""
    return slot.spawned and not slot.closed


def _accept_desired_state(slot: Slot, desired: DesiredState) -> Slot:
    slot = slot._replace(desired=desired)
    return slot if is_alive(slot) else _begin_attempt(slot, desired.attempt)


def _begin_attempt(slot: Slot, attempt: int) -> Slot:
    if attempt <= slot.attempt:
        return slot
    return Slot(
        slot.name,
        slot.desired,
        attempt,
        facts=slot.facts,
        address=slot.address,
        link_port=slot.link_port,
        snapshot=slot.snapshot,
        source=slot.source,
        fetching=slot.fetching,
        stop_grace_s=slot.stop_grace_s,
        preempted=slot.preempted,
    )


def _apply_event(slot: Slot, event: SlotEvent) -> Slot:
    if isinstance(event, Reserved):
        slot = slot._replace(port=event.port, reserving=False)
    elif isinstance(event, Restored):
        slot = slot._replace(restored=not event.problem, restoring=False, reason=slot.reason or event.problem)
        slot = slot._replace(checkpoint=event.checkpoint)
    elif isinstance(event, Failed):
        slot = slot._replace(reason=slot.reason or event.reason, reserving=False, restoring=False)
    elif isinstance(event, HeldAtGate):
        slot = slot._replace(held=True)
    else:
        slot = _apply_event2(slot, event)
    return slot


def _apply_event2(slot: Slot, event: SlotEvent) -> Slot:
    if isinstance(event, PortsProbed):
        slot = slot._replace(probe_results=event.errors)
    elif isinstance(event, Exited):
        slot = slot._replace(exit=event.exit, reason=slot.reason or event.reason)
    elif isinstance(event, Closed):
        slot = slot._replace(closed=True)
        if slot.desired is not None:
            slot = _begin_attempt(slot, slot.desired.attempt)
    elif isinstance(event, TaskActivity):
        slot = slot._replace(activity=event, hang=None)
    elif isinstance(event, TaskInspected):
        slot = slot._replace(inspected=event.inspection, hang=event.hang)
    return slot


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
        return slot, [*more, *actions]
    return (
        _prepare_task(slot, desired)
        if desired.task_of(slot.name) and not slot.reason
        else _copy_checkpoint(slot, desired)
    )


def _stop_task(slot: Slot, desired: DesiredState) -> Step:
    same = desired.attempt == slot.attempt
    grace_s = desired.grace_s if same else 0.0
    if slot.exit is not None or (slot.ending_grace_s is not None and grace_s >= slot.ending_grace_s):
        return slot, []
    reason = desired.reason.text if same else f"attempt {desired.attempt} begins"
    return slot._replace(ending_grace_s=grace_s), [EndTask(slot.attempt, reason, grace_s)]


def _report_end(slot: Slot, desired: DesiredState) -> Step:
    if desired.stage is Stage.RESULT and desired.result is not None:
        return slot._replace(finished=True), [Finish(desired.result)]
    if desired.stage is not Stage.WAIT or desired.attempt != slot.attempt or slot.end_reported:
        return slot, []
    exits = {desired.display_name(name): ended for name, ended in desired.exits.items()}
    first = desired.display_name(desired.first_failed_slot)
    text, kind = desired.reason
    ended = AttemptEnded(slot.name, desired.attempt, 0.0, first, text, exits, desired.retry_s, reason_kind=kind)
    ended = ended._replace(preempted=desired.preempted, first_failed_slot=desired.first_failed_slot)
    return slot._replace(end_reported=True), [ReportAttemptEnd(ended)] if desired.task_of(slot.name) else []


def _prepare_task(slot: Slot, desired: DesiredState) -> Step:
    if desired.stage is Stage.RESERVE:
        if slot.port or slot.reserving:
            return slot, []
        return slot._replace(reserving=True), [Reserve(slot.attempt)]
    if slot.spawned or slot.restoring:
        return slot, []
    if not slot.port:  # it replaces a slot whose loss the leader has not noticed yet
        return _copy_checkpoint(slot, desired)
    if not slot.restored:
        return slot._replace(restoring=True), [Restore(slot.attempt, desired.snapshot, tuple(desired.sources))]
    spawn = Spawn(slot.attempt, desired.task_of(slot.name), tuple(desired.members), slot.checkpoint)
    return slot._replace(spawned=True, closed=False), [spawn]


def _advance_task(slot: Slot, desired: DesiredState) -> Step:
    actions: List[SlotAction] = []
    if desired.stage is Stage.CHECK and slot.held and not slot.probing:
        slot = slot._replace(probing=True)
        others = tuple(member for member in desired.members if member.slot != slot.name)
        actions.append(ProbePorts(slot.attempt, others))
    if desired.stage is Stage.GO and slot.held and not slot.released:
        slot = slot._replace(released=True)
        actions.append(OpenGate(slot.attempt))
    if desired.stage is Stage.GO and desired.inspection > slot.inspecting:
        slot = slot._replace(inspecting=desired.inspection)
        actions.append(InspectTask(slot.attempt, desired.inspection))
    slot, more = _forward_notices(slot, desired)
    return slot, [*actions, *more]


def _forward_notices(slot: Slot, desired: DesiredState) -> Step:
    """Forward new notices of this attempt to the user, and copy checkpoints."""
    new_notices = desired.notices[slot.notices_sent :] if desired.attempt == slot.attempt else []
    slot, more = _copy_checkpoint(
        slot._replace(notices_sent=max(slot.notices_sent, len(desired.notices) if new_notices else 0)), desired
    )
    return slot, [*(Notify(slot.attempt, text) for text in new_notices), *more]


def _copy_checkpoint(slot: Slot, desired: DesiredState) -> Step:
    """Copy the newest checkpoint while an attempt runs or ends."""
    wanted = desired.snapshot
    newest_known = newest(slot.snapshot, slot.fetching)
    if (
        desired.stage not in _COPYING
        or wanted is None
        or not desired.sources
        or newest(newest_known, wanted) == newest_known
    ):
        return slot, []
    return slot._replace(fetching=wanted), [Fetch(wanted, tuple(desired.sources))]
