"""The state of a job at its leader, and what can be read from it: tasks, slots, and the first failure. Pure."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

from train import defaults
from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang.assignment import Assignments, initial_assignments, is_evaluator, trainers
from train.agent.gang.states import SlotStatus, Stage
from train.agent.protocol.cluster import called
from train.agent.protocol.records import NO_REASON, Exit, JobResult, Member, Outcome, Policy, Reason, ReasonKind
from train.agent.protocol.wording import signal_name

NOT_READY = "the hosts are not ready for the job"
FIXED_CHECKPOINT_STAGES = (Stage.LAUNCH, Stage.CHECK)  # all slots must start from the same checkpoint


START_STAGES = (Stage.QUEUE, Stage.RESERVE, Stage.LAUNCH, Stage.CHECK)


class JobTerms(NamedTuple):
    """The parameters of a job, fixed when it was committed."""

    job: str
    slots: Tuple[Member, ...]  # with the tasks of the first attempt; spares have none
    policy: Policy = Policy()
    grace_s: float = defaults.GRACE_S
    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    link_timeout_s: float = defaults.LINK_TIMEOUT_S
    resume: Optional[Tuple[int, int]] = None  # attempt and number of the snapshot from which the job continues
    joinable: Tuple[str, ...] = ()  # slots that may join the running job; without an address until they have
    queued: bool = False  # the job waits for the end of an earlier one

    @property
    def tasks(self) -> Tuple[str, ...]:
        """Return all tasks of the job, in order."""
        return tuple(initial_assignments(self.slots))

    @property
    def spares(self) -> int:
        """Return the number of slots that are kept as spares."""
        return sum(not member.task and member.slot not in self.joinable for member in self.slots)


class Ending(NamedTuple):
    """Why an attempt ends."""

    outcome: Outcome
    first_failed_slot: str = ""
    reason: Reason = NO_REASON
    exit: Optional[Exit] = None
    final: bool = False  # never restart
    summary: str = ""  # short form of a long reason
    host_lost: bool = False  # the host of `first_failed_slot` is gone or being preempted

    def summarize(self) -> Reason:
        """Return the reason in its short form."""
        return self.reason._replace(text=self.summary or self.reason.text)


class HangWatch(NamedTuple):
    """The state of the hang detection in an attempt."""

    inspection: int = 0  # number of inspections requested
    deadline: Optional[float] = None  # of the current inspection
    reported: bool = False  # until there is progress again


class QueueState(NamedTuple):
    """The state of a job that waits for an earlier one."""

    gathered: bool = False  # every slot with a task has reported once: the job can start without its client
    is_turn: bool = False  # no earlier job holds a connected slot


class Evaluation(NamedTuple):
    """The state of the evaluation after training."""

    trained_at: Optional[float] = None  # when the decisive slots succeeded
    last_checkpoint_at: Optional[float] = None  # when evaluators received the last checkpoint
    dropped: FrozenSet[str] = frozenset()  # failed evaluators


class Growth(NamedTuple):
    """The new hosts of a job, as its leader knows them."""

    candidates: Tuple[str, ...] = ()  # slots that join in the next attempt
    since: Optional[Snapshot] = None  # newest checkpoint when the first of them came
    trial: FrozenSet[str] = frozenset()  # slots that joined in this attempt, until user code runs in it
    rejected: FrozenSet[str] = frozenset()  # slots that do not fit


class Gang(NamedTuple):
    """The state of a job at its leader; points in time are seconds of a monotonic clock."""

    terms: JobTerms
    local_slot: str
    term: int
    attempt: int
    stage: Stage
    members: Tuple[Member, ...]  # of this attempt, in the order of their tasks
    began_at: float  # start of the stage
    restarts: int = 0
    preemptions: int = 0
    connected: FrozenSet[str] = frozenset()
    statuses: Dict[str, SlotStatus] = {}
    eventful: FrozenSet[str] = frozenset()  # slots whose last status reports an end, a problem, or a preemption
    lost: Dict[str, str] = {}  # slot of this attempt -> how it was lost
    started: bool = False  # True if user code ever ran
    job_deadline: Optional[float] = None
    lifetime_end: Optional[float] = None  # when the job must have ended on the first of its connected hosts
    warned_of: Optional[float] = None  # the end of the lifetime of which the user was warned
    end: Optional[Ending] = None
    ended_at: float = 0.0  # when the end of the attempt was decided; its tasks end after that
    grace_s: float = 0.0
    fenced_until: float = 0.0  # lost slots have noticed the loss and ended their tasks by then
    snapshot: Optional[Snapshot] = None
    notices: Tuple[str, ...] = ()
    hang: HangWatch = HangWatch()
    active_at: float = 0.0  # when a task was last known to be active
    evaluation: Evaluation = Evaluation()
    growth: Growth = Growth()
    joined: Tuple[Member, ...] = ()  # slots of `terms.joinable` that have joined, without their tasks
    queue: QueueState = QueueState()
    last_lost_at: float = 0.0  # when a connected host was last lost
    isolated: bool = False
    start_delay_s: float = 0.0
    result: Optional[JobResult] = None

    def assigned_slots(self) -> List[str]:
        """Return the slots that have a task, in the order of their tasks."""
        return [member.slot for member in self.members]

    def assigned_tasks(self) -> List[str]:
        """Return the tasks of this attempt, in order."""
        return [member.task for member in self.members]

    def training_slots(self) -> List[str]:
        """Return the slots that train, the chief first."""
        training_tasks = set(trainers(self.assigned_tasks()))
        return [member.slot for member in self.members if member.task in training_tasks]

    def evaluator_slots(self) -> List[str]:
        """Return the slots of the evaluators."""
        return [member.slot for member in self.members if is_evaluator(member.task)]

    def required_slots(self) -> List[str]:
        """Return the slots whose failure ends the attempt: all, but no evaluators once it runs."""
        if not (self.started and self.stage in (Stage.GO, Stage.STOP)):
            return self.assigned_slots()
        return [member.slot for member in self.members if not is_evaluator(member.task)]

    def display_name(self, slot: str) -> str:
        """Return the name of a slot in messages to the user: its task, if it has one."""
        return next((member.task for member in self.members if member.slot == slot), slot)

    def describe_slot(self, slot: str) -> str:
        """Return the name with the address: ``ps-0 (10.0.0.4)``."""
        return called([*self.joined, *self.terms.slots], slot, self.display_name(slot))

    def find_slot(self, name: str) -> str:
        """Return the slot of a task."""
        return self.assignments().get(name, name)

    def status_of(self, slot: str) -> SlotStatus:
        """Return the status of a slot in this attempt."""
        report = self.statuses.get(slot)
        if report is None or report.attempt != self.attempt:
            return SlotStatus(slot, closed=False)
        return report

    def has_ended(self, slot: str) -> bool:
        """Return True if the task of a slot has ended."""
        return self.status_of(slot).exit is not None

    def exits(self) -> Dict[str, Exit]:
        """Return the exits of the tasks that have ended."""
        exits = {member.task: self.status_of(member.slot).exit for member in self.members}
        return {task: ended for task, ended in exits.items() if ended is not None}

    def unready_slots(self) -> List[str]:
        """Return the slots whose task does not wait at its gate yet."""
        statuses = [self.status_of(slot) for slot in self.assigned_slots()]
        return [report.slot for report in statuses if not report.held or report.facts is None]

    def assignments(self) -> Assignments:
        """Return the assignments of this attempt."""
        return {member.task: member.slot for member in self.members}

    def is_preempted(self, slot: str) -> bool:
        """Return True if the cloud provider is about to take the host of a slot."""
        report = self.statuses.get(slot)
        return report is not None and report.preempted

    def known_slots(self) -> List[str]:
        """Return all slots except those that have not joined yet."""
        joined = {member.slot for member in self.joined}
        return [member.slot for member in self.terms.slots if member.address or member.slot in joined]

    def available_slots(self) -> List[str]:
        """Return the slots that can take part in the next attempt: connected, closed, and not being preempted."""
        statuses = [self.statuses.get(member.slot) for member in self.terms.slots if member.slot in self.connected]
        return [status.slot for status in statuses if status is not None and status.closed and not status.preempted]

    def checkpoint_holders(self) -> List[str]:
        """Return the slots that hold the newest checkpoint."""
        return [slot for slot in sorted(self.connected) if self.statuses[slot].snapshot == self.snapshot]

    def find_preemption(self) -> Optional[Ending]:
        """Return the end of an attempt that loses a host to preemption, or None."""
        for slot in self.required_slots():
            if self.is_preempted(slot) and self.status_of(slot).exit != Exit(code=0):
                reason = Reason(f"{self.describe_slot(slot)} was preempted", ReasonKind.PREEMPTED)
                return Ending(Outcome.FAILED, slot, reason, host_lost=True)
        return None

    def find_failure(self) -> Optional[Ending]:
        """Return the first failure among the tasks and their hosts, or None."""
        if not (self.eventful or self.lost):  # the usual case, which a leader of many hosts meets at each message
            return None
        preemption = self.find_preemption()
        if preemption is not None:
            return preemption
        required = self.required_slots()
        for slot in required:
            failed = self.task_failure(slot)
            if failed is not None:
                return failed
        for slot, reason in self.lost.items():
            if slot in required:
                return Ending(Outcome.FAILED, slot, Reason(reason, ReasonKind.HOST_LOST), host_lost=True)
        return None

    def task_failure(self, slot: str) -> Optional[Ending]:
        """Return how the task of a slot failed, or None if it did not."""
        report = self.status_of(slot)
        if report.reason and (report.exit is not None or report.closed):
            return Ending(Outcome.FAILED, slot, report.reason, report.exit)
        if report.exit is None or (self.stage is Stage.GO and report.exit.code == 0):
            return None
        name = self.display_name(slot)
        if self.stage is not Stage.GO:
            return Ending(Outcome.FAILED, slot, Reason(f"{name} ended before the start"), report.exit)
        kind = ReasonKind.OTHER if report.exit.signal is None else ReasonKind.KILLED
        return Ending(Outcome.FAILED, slot, Reason(describe_exit(name, report.exit), kind), report.exit)

    def enter(self, stage: Stage, now: float) -> Gang:
        """Return the self in another stage, from now on."""
        if self.stage in FIXED_CHECKPOINT_STAGES and stage not in FIXED_CHECKPOINT_STAGES:
            held = [self.statuses[slot].snapshot for slot in self.connected]
            return self._replace(stage=stage, began_at=now, snapshot=newest(self.snapshot, *held))
        return self._replace(stage=stage, began_at=now)

    def running_statuses(self, slots: List[str]) -> List[SlotStatus]:
        """Return the statuses of slots whose tasks have not ended."""
        return [self.status_of(slot) for slot in slots if not self.has_ended(slot)]


def describe_exit(task: str, ended: Exit) -> str:
    """Return ``worker-1 was killed by SIGKILL``, or ``worker-1 exited with code 1``."""
    if ended.signal is None:
        return f"{task} exited with code {ended.code}"
    return f"{task} was killed by {signal_name(ended.signal)}"


def current_members(
    terms: JobTerms, assignments: Assignments, statuses: Mapping[str, SlotStatus]
) -> Tuple[Member, ...]:
    """Return the tasks with the current addresses and ports; another host may have replaced that of a slot."""
    members = []
    by_slot = {member.slot: member for member in terms.slots}
    for task, slot in assignments.items():
        member = by_slot[slot]
        now = statuses.get(slot, SlotStatus(slot))
        address, port, link_port = now.address or member.address, now.port or member.port, now.link_port
        members.append(Member(slot, task, address, port, link_port or member.link_port))
    return tuple(members)
