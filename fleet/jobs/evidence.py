"""Collect evidence about each task of a job, and diagnose the first cause of failed attempts."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.fleets.agents import call_each
from fleet.jobs.tasks import independence_warning
from fleet.remote.client import AgentClient
from train.agent.protocol.records import (
    NO_REASON,
    AttemptEnded,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Member,
    Outcome,
    Phase,
    Reason,
    Record,
    TaskState,
    build,
    to_dict,
)
from train.diagnosis.verdict import LARGEST_HEAD, LARGEST_TAIL, TaskEvidence, Verdict

_TAILS = 8 << 20  # bytes of the ends of all logs of an attempt
_LEAST_TAIL = 16 << 10  # of one log
_AT_ONCE_S = 10.0

MOST_ATTEMPTS = 8
"""Maximum number of attempts of a slot that are kept without a verdict; older ones are dropped."""


@dataclass
class _Task:
    """The evidence about one task in one attempt."""

    task: str = ""
    stopped: bool = False
    running_at: float = 0.0
    exited: TaskState | None = None
    inspection: HangInspection | None = None
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, record: Log | TaskState | HangInspection, payload: bytes, tail_bytes: int) -> None:
        """Add a record, and the bytes that followed it; drop the middle of a long log."""
        self.task = record.task
        if isinstance(record, HangInspection):
            self.inspection = record
        elif isinstance(record, TaskState):
            self.stopped = self.stopped or record.phase is Phase.STOPPING
            self.running_at = record.at if record.phase is Phase.RUNNING else self.running_at
            self.exited = record if record.phase is Phase.EXITED else self.exited
        else:
            self.head += payload[: LARGEST_HEAD - len(self.head)]
            if len(payload) >= tail_bytes:
                self.tail.clear()
            self.tail += payload[-tail_bytes:]
            if len(self.tail) > 2 * tail_bytes:
                del self.tail[:-tail_bytes]

    def to_json(self, *, log: bool) -> dict[str, Any]:
        """Return the evidence as plain JSON values, with the log if `log`."""
        logs = {"head": self.head, "tail": self.tail[-LARGEST_TAIL:]}
        plain = {name: to_dict(value) for name, value in vars(self).items()}
        return plain | {name: base64.b64encode(data).decode() if log else "" for name, data in logs.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> _Task:
        """Return the evidence that `to_json` returned."""
        kinds = {"exited": TaskState, "inspection": HangInspection}
        records = {name: build(kind, values[name]) for name, kind in kinds.items() if values[name] is not None}
        logs = {name: bytearray(base64.b64decode(values[name])) for name in ("head", "tail")}
        return cls(**{**values, **records, **logs})


@dataclass
class Evidence:
    """Collects what the tasks of a job report, in bounded memory.

    The reports of a slot never replace those of another slot, whatever task and attempt they name.

    Attributes:
        members: All slots of the job with their tasks of the first attempt.
    """

    members: Sequence[Member]
    _attempts: dict[int, dict[str, _Task]] = field(default_factory=dict)  # by slot
    _diagnosed: dict[str, int] = field(default_factory=dict)  # newest attempt with a verdict, by slot
    _tasks: dict[str, str] = field(default_factory=dict)  # the newest of each slot

    def add(self, record: object, payload: bytes) -> None:
        """Add a record, and the bytes that followed it."""
        if not isinstance(record, (Log, TaskState, HangInspection)) or record.attempt < self._diagnosed.get(
            record.slot, 0
        ):
            return
        self._tasks[record.slot] = record.task
        tail_bytes = max(_LEAST_TAIL, min(LARGEST_TAIL, _TAILS // max(1, len(self.members))))
        self._entry(record.attempt, record.slot).add(record, payload, tail_bytes)

    def _entry(self, attempt: int, slot: str) -> _Task:
        slots = self._attempts.setdefault(attempt, {})
        if slot not in slots:
            slots[slot] = _Task()
            kept = sorted(number for number, slots in self._attempts.items() if slot in slots)
            self._forget(slot, kept[:-MOST_ATTEMPTS])
        return slots[slot]

    def _forget(self, slot: str, attempts: Iterable[int]) -> None:
        for attempt in attempts:
            del self._attempts[attempt][slot]
            if not self._attempts[attempt]:
                del self._attempts[attempt]

    def newest(self, slot: str, *, log: bool) -> dict[str, Any]:
        """Return the evidence of a slot's newest attempt as plain JSON values, for `merge` in another process.

        Args:
            slot: The slot.
            log: Include the log.
        """
        number = max((number for number, slots in self._attempts.items() if slot in slots), default=0)
        if not number:
            return {}
        return {"slot": slot, "attempt": number, "task": self._attempts[number][slot].to_json(log=log)}

    def merge(self, values: Mapping[str, Any]) -> None:
        """Add the evidence that `newest` returned in another process."""
        if values:
            slots = self._attempts.setdefault(int(values["attempt"]), {})
            slots[str(values["slot"])] = _Task.from_json(values["task"])

    def complete(self, ended: AttemptEnded, away: Collection[str]) -> bool:
        """Return whether all evidence of an attempt has arrived, except that of the slots in `away`."""
        slots = self._attempts.get(ended.attempt, {})
        tasks = {member.slot: member.task for member in self.members} | self._tasks
        missing = {*ended.exits} - {entry.task for entry in slots.values()} - {tasks.get(slot, "") for slot in away}
        return not missing and all(entry.exited is not None for slot, entry in slots.items() if slot not in away)

    def of_attempt(self, ended: AttemptEnded) -> Verdict | None:
        """Return the first cause of a failed attempt, and drop the evidence of earlier attempts."""
        verdict = self._verdict(ended.attempt, Outcome.FAILED, ended)
        for slot in self._attempts.get(ended.attempt, {}):
            self._diagnosed[slot] = max(self._diagnosed.get(slot, 0), ended.attempt)
            earlier = [number for number, slots in self._attempts.items() if slot in slots and number < ended.attempt]
            self._forget(slot, earlier)
        return verdict

    def verdict(self, result: JobResult) -> Verdict | None:
        """Return the first cause of the job's failure, from its last attempt only; None if it did not fail."""
        return self._verdict(result.attempt, result.outcome, result)

    def independence_warning(self, result: JobResult) -> str:
        """Return a warning if the tasks of a job that succeeded trained alone; empty if they did not."""
        participants = self._participants(result.attempt, result)
        return independence_warning(
            result, [(entry.task, entry.exited.listened if entry.exited else None) for _, entry in participants]
        )

    def silence(self, result: JobResult) -> str:
        """Return a sentence about a job that succeeded at once and printed nothing; empty: another job."""
        tasks = [entry for _, entry in self._participants(result.attempt, result)]
        times = [entry.exited.at - entry.running_at for entry in tasks if entry.exited and entry.running_at]
        is_silent = tasks and len(times) == len(tasks) and not any(entry.tail for entry in tasks)
        if result.outcome is not Outcome.SUCCEEDED or not is_silent or max(times) > _AT_ONCE_S:
            return ""
        return f"the job ran {max(times):.1f} s and printed nothing: check that the script calls its main function"

    def _verdict(self, attempt: int, outcome: Outcome, end: AttemptEnded | JobResult) -> Verdict | None:
        if outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):  # nothing to diagnose, with modules that load slowly
            return None
        from train.diagnosis.cause import diagnose

        evidence = [self._evidence(slot, entry, attempt, end) for slot, entry in self._participants(attempt, end)]
        return diagnose(evidence, outcome, end.first_failed_task, Reason(end.reason, end.reason_kind))

    def _participants(self, attempt: int, end: AttemptEnded | JobResult) -> list[tuple[str, _Task]]:
        """Return the tasks of an attempt, by slot: those that reported, and those that are named in other reports."""
        slots = self._attempts.get(attempt, {})
        reported = {entry.task for entry in slots.values()}
        named = {*end.exits, end.first_failed_task}
        silent = [
            (member.slot, _Task(member.task))
            for member in self.members
            if member.task and member.task not in reported and (attempt <= 1 or member.task in named)
        ]
        return [*slots.items(), *silent]

    def _evidence(self, slot: str, entry: _Task, attempt: int, end: AttemptEnded | JobResult) -> TaskEvidence:
        """Return the evidence of a task with the address of its slot; its port is only known in the first attempt."""
        member = next((member for member in self.members if member.slot == slot), None)
        exited = entry.exited
        return TaskEvidence(
            entry.task,
            address=member.address if member else "",
            port=member.port if member and attempt <= 1 else 0,
            exit=(exited.exit if exited else None) or end.exits.get(entry.task),
            exited_at=exited.at if exited else None,
            reason=Reason(exited.reason, exited.reason_kind) if exited else NO_REASON,
            stopped_by_us=entry.stopped,
            inspection=entry.inspection,
            log_tail=bytes(entry.tail[-LARGEST_TAIL:]),
            log_head=bytes(entry.head),
        )


def first_cause(members: Sequence[Member], result: JobResult, clients: Sequence[AgentClient]) -> Verdict | None:
    """Return the first cause of a job's failure; None if it did not fail, or if it ended before any user code ran.

    Args:
        members: All slots of the job.
        result: The result of the job.
        clients: Connections to its agents, which send the start and the end of each log of the last attempt.
    """
    if not result.started or result.outcome not in (Outcome.FAILED, Outcome.LOST):
        return None
    request = Follow(result.job, "", attempt=max(1, result.attempt), follow=False)
    request = request._replace(head_bytes=LARGEST_HEAD, tail_bytes=LARGEST_TAIL)

    def read(client: AgentClient) -> list[tuple[Record, bytes]]:
        return list(client.follow(request._replace(slot=client.host.name)))

    evidence = Evidence(members)
    for outcome in call_each(clients, read):
        for record, payload in outcome.value or ():
            evidence.add(record, payload)
    return evidence.verdict(result)
