"""What following a job shows of each task, kept for the verdicts on the first causes of its attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.jobs.alone import alone_warning
from train.agent.protocol.records import (
    AttemptEnded,
    Exit,
    JobResult,
    Log,
    Member,
    Outcome,
    Phase,
    Stalled,
    TaskState,
)
from train.diagnosis import TaskEvidence, Verdict, diagnose
from train.diagnosis.model import LARGEST_HEAD, LARGEST_TAIL

MOST_ATTEMPTS = 8
"""Number of attempts of a task that are kept if none was judged yet: the newest ones."""


@dataclass
class _Slot:
    """What came of one slot in one attempt."""

    role: str = ""
    host: str = ""
    exit: Exit | None = None
    exited_at: float | None = None
    listened: bool | None = None
    reason: str = ""
    stopped: bool = False
    stalled: Stalled | None = None
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add_log(self, data: bytes) -> None:
        """Take output; of the middle of a long log nothing is kept."""
        self.head += data[: LARGEST_HEAD - len(self.head)]
        self.tail += data[-LARGEST_TAIL:]
        if len(self.tail) > 2 * LARGEST_TAIL:
            del self.tail[:-LARGEST_TAIL]

    def add_state(self, state: TaskState) -> None:
        """Take a change of phase."""
        self.role = state.role or self.role
        self.host = state.host
        if state.phase is Phase.STOPPING:
            self.stopped = True
        elif state.phase is Phase.EXITED:
            self.exit, self.exited_at, self.reason = state.exit, state.at, state.reason
            self.listened = state.listened


@dataclass
class Evidence:
    """Collects what comes of a job's tasks; memory is bounded whatever comes.

    What comes of one task never removes what came of another one, whatever attempts its host reports.

    Attributes:
        members: All tasks of the job, those of which nothing was heard included.
        spares: Those of them that are no tasks at first.
        hosts: The host of each task, where these have other names.
    """

    members: Sequence[Member]
    spares: Sequence[str] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    _attempts: dict[int, dict[str, _Slot]] = field(default_factory=dict)
    _judged: dict[str, int] = field(default_factory=dict)

    def add(self, record: object, payload: bytes) -> None:
        """Take one record, and the bytes that came with it."""
        if not isinstance(record, (Log, TaskState, Stalled)) or record.attempt < self._judged.get(record.task, 0):
            return
        slot = self._slot(record.attempt, record.task)
        if isinstance(record, Log):
            slot.add_log(payload)
        elif isinstance(record, TaskState):
            slot.add_state(record)
        else:
            slot.stalled = record

    def _slot(self, attempt: int, task: str) -> _Slot:
        slots = self._attempts.setdefault(attempt, {})
        if task not in slots:
            slots[task] = _Slot()
            kept = sorted(number for number, tasks in self._attempts.items() if task in tasks)
            self._forget(task, kept[:-MOST_ATTEMPTS])
        return slots[task]

    def _forget(self, task: str, attempts: Iterable[int]) -> None:
        for attempt in attempts:
            del self._attempts[attempt][task]
            if not self._attempts[attempt]:
                del self._attempts[attempt]

    def complete(self, ended: AttemptEnded, away: Collection[str]) -> bool:
        """Whether all has come of an attempt that is to come, but for the tasks whose hosts are `away`."""
        slots = self._attempts.get(ended.attempt, {})
        expected = {*slots, *ended.exits} - {*away}
        return all(task in slots and slots[task].exited_at is not None for task in expected)

    def of_attempt(self, ended: AttemptEnded) -> Verdict | None:
        """Return the first cause of a failed attempt, and drop what its tasks did in earlier attempts."""
        verdict = self._verdict(ended.attempt, Outcome.FAILED, ended)
        for task in self._attempts.get(ended.attempt, {}):
            self._judged[task] = max(self._judged.get(task, 0), ended.attempt)
            earlier = [number for number, tasks in self._attempts.items() if task in tasks and number < ended.attempt]
            self._forget(task, earlier)
        return verdict

    def verdict(self, result: JobResult) -> Verdict | None:
        """The first cause of how the job ended, from its last attempt alone; None where it did not fail."""
        return self._verdict(result.attempt, result.outcome, result)

    def alone(self, result: JobResult) -> str:
        """Return a warning if the tasks of a job that succeeded trained alone; empty if they did not."""
        slots = self._attempts.get(result.attempt, {})
        took_part = [one.task for one in self.members if self._took_part(one.task, result.attempt, result)]
        found = [slots.get(task, _Slot()) for task in took_part]
        return alone_warning(
            result, [(slot.role or task, slot.listened) for task, slot in zip(took_part, found, strict=True)]
        )

    def _verdict(self, attempt: int, outcome: Outcome, end: AttemptEnded | JobResult) -> Verdict | None:
        slots = self._attempts.get(attempt, {})
        evidence = [
            _evidence(
                self._where(member, slots.get(member.task), attempt), slots.get(member.task, _Slot()), end.exits
            )
            for member in self.members
            if self._took_part(member.task, attempt, end)
        ]
        return diagnose(evidence, outcome, end.first_failed_task, end.reason)

    def _where(self, member: Member, slot: _Slot | None, attempt: int) -> Member:
        """Return a task with the address of its host then; its port is known in the first attempt only."""
        by_host = {self.hosts.get(one.task, one.task): one.address for one in self.members}
        address = by_host.get(slot.host if slot else "", member.address)
        return member._replace(address=address, port=member.port if attempt <= 1 else 0)

    def _took_part(self, task: str, attempt: int, end: AttemptEnded | JobResult) -> bool:
        """Whether a slot had a task in an attempt: which of them do may change from one to the next."""
        heard = task in self._attempts.get(attempt, {}) or task in end.exits or task == end.first_failed_task
        return heard or (attempt <= 1 and task not in self.spares)


def _evidence(member: Member, slot: _Slot, exits: Mapping[str, Exit]) -> TaskEvidence:
    return TaskEvidence(
        member.task,
        role=slot.role,
        address=member.address,
        port=member.port,
        exit=slot.exit or exits.get(member.task),
        exited_at=slot.exited_at,
        reason=slot.reason,
        stopped_by_us=slot.stopped,
        stalled=slot.stalled,
        log_tail=bytes(slot.tail[-LARGEST_TAIL:]),
        log_head=bytes(slot.head),
    )
