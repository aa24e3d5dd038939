"""Collect evidence about each task of a job, to diagnose the first cause of failed attempts."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.fleets.agents import ask_each
from fleet.jobs.alone import alone_warning
from fleet.remote.client import AgentClient
from train.agent.protocol.records import (
    NO_REASON,
    AttemptEnded,
    Exit,
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
from train.diagnosis import TaskEvidence, Verdict, diagnose
from train.diagnosis.verdict import LARGEST_HEAD, LARGEST_TAIL

MOST_ATTEMPTS = 8
"""Maximum number of attempts of a slot that are kept without a verdict; older ones are dropped."""


@dataclass
class _Task:
    """The evidence about one task in one attempt."""

    task: str = ""
    exit: Exit | None = None
    exited_at: float | None = None
    listened: bool | None = None
    reason: Reason = NO_REASON
    stopped: bool = False
    inspection: HangInspection | None = None
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add_log(self, data: bytes) -> None:
        """Add output; drop the middle of a long log."""
        self.head += data[: LARGEST_HEAD - len(self.head)]
        self.tail += data[-LARGEST_TAIL:]
        if len(self.tail) > 2 * LARGEST_TAIL:
            del self.tail[:-LARGEST_TAIL]

    def add_state(self, state: TaskState) -> None:
        """Add a change of phase."""
        if state.phase is Phase.STOPPING:
            self.stopped = True
        elif state.phase is Phase.EXITED:
            self.exit, self.exited_at = state.exit, state.at
            self.reason = Reason(state.reason, state.reason_kind)
            self.listened = state.listened

    def to_json(self, *, log: bool) -> dict[str, Any]:
        """Return the evidence as plain JSON values, with the log if `log`."""
        return {
            "task": self.task,
            "exit": to_dict(self.exit),
            "exited_at": self.exited_at,
            "listened": self.listened,
            "reason": to_dict(self.reason),
            "stopped": self.stopped,
            "inspection": to_dict(self.inspection),
            "head": base64.b64encode(self.head).decode() if log else "",
            "tail": base64.b64encode(self.tail[-LARGEST_TAIL:]).decode() if log else "",
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> _Task:
        """Return the evidence that `to_json` returned."""
        loaded = {**values}
        loaded["exit"] = build(Exit, loaded["exit"]) if loaded["exit"] else None
        loaded["inspection"] = build(HangInspection, loaded["inspection"]) if loaded["inspection"] else None
        loaded["reason"] = build(Reason, loaded["reason"])
        loaded["head"], loaded["tail"] = (bytearray(base64.b64decode(loaded[name])) for name in ("head", "tail"))
        return cls(**loaded)


@dataclass
class Evidence:
    """Collects what the tasks of a job report, in bounded memory.

    The reports of a slot never replace those of another slot, whatever task and attempt they name.

    Attributes:
        members: All slots of the job with their tasks of the first attempt.
    """

    members: Sequence[Member]
    _attempts: dict[int, dict[str, _Task]] = field(default_factory=dict)  # by slot
    _judged: dict[str, int] = field(default_factory=dict)  # newest attempt with a verdict, by slot
    _tasks: dict[str, str] = field(default_factory=dict)  # the newest of each slot

    def add(self, record: object, payload: bytes) -> None:
        """Add a record, and the bytes that followed it."""
        if not isinstance(record, (Log, TaskState, HangInspection)) or record.attempt < self._judged.get(
            record.slot, 0
        ):
            return
        task = self._entry(record.attempt, record.slot)
        task.task = self._tasks[record.slot] = record.task
        if isinstance(record, Log):
            task.add_log(payload)
        elif isinstance(record, TaskState):
            task.add_state(record)
        else:
            task.inspection = record

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
        return not missing and all(entry.exited_at is not None for slot, entry in slots.items() if slot not in away)

    def of_attempt(self, ended: AttemptEnded) -> Verdict | None:
        """Return the first cause of a failed attempt, and drop the evidence of earlier attempts."""
        verdict = self._verdict(ended.attempt, Outcome.FAILED, ended)
        for slot in self._attempts.get(ended.attempt, {}):
            self._judged[slot] = max(self._judged.get(slot, 0), ended.attempt)
            earlier = [number for number, slots in self._attempts.items() if slot in slots and number < ended.attempt]
            self._forget(slot, earlier)
        return verdict

    def verdict(self, result: JobResult) -> Verdict | None:
        """Return the first cause of the job's failure, from its last attempt only; None if it did not fail."""
        return self._verdict(result.attempt, result.outcome, result)

    def alone(self, result: JobResult) -> str:
        """Return a warning if the tasks of a job that succeeded trained alone; empty if they did not."""
        took_part = self._took_part(result.attempt, result)
        return alone_warning(result, [(entry.task, entry.listened) for _, entry in took_part])

    def _verdict(self, attempt: int, outcome: Outcome, end: AttemptEnded | JobResult) -> Verdict | None:
        evidence = [self._evidence(slot, entry, attempt, end) for slot, entry in self._took_part(attempt, end)]
        return diagnose(evidence, outcome, end.first_failed_task, Reason(end.reason, end.reason_kind))

    def _took_part(self, attempt: int, end: AttemptEnded | JobResult) -> list[tuple[str, _Task]]:
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
        return TaskEvidence(
            entry.task,
            address=member.address if member else "",
            port=member.port if member and attempt <= 1 else 0,
            exit=entry.exit or end.exits.get(entry.task),
            exited_at=entry.exited_at,
            reason=entry.reason,
            stopped_by_us=entry.stopped,
            inspection=entry.inspection,
            log_tail=bytes(entry.tail[-LARGEST_TAIL:]),
            log_head=bytes(entry.head),
        )


def first_cause(members: Sequence[Member], result: JobResult, channels: Sequence[AgentClient]) -> Verdict | None:
    """Return the first cause of a job's failure; None if it did not fail, or if it ended before any user code ran.

    Args:
        members: All slots of the job.
        result: The result of the job.
        channels: Connections to its agents, which send the start and the end of each log of the last attempt.
    """
    if not result.started or result.outcome not in (Outcome.FAILED, Outcome.LOST):
        return None
    request = Follow(result.job, "", attempt=max(1, result.attempt), follow=False)
    request = request._replace(head_bytes=LARGEST_HEAD, tail_bytes=LARGEST_TAIL)

    def read(channel: AgentClient) -> list[tuple[Record, bytes]]:
        return list(channel.follow(request._replace(slot=channel.host.name)))

    evidence = Evidence(members)
    for outcome in ask_each(channels, read):
        for record, payload in outcome.value or ():
            evidence.add(record, payload)
    return evidence.verdict(result)
