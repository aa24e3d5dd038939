"""What following a job shows of each task, kept for the verdict on its first cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from train.agent.records import JobResult, Log, Member, Phase, TaskState
from train.diagnosis import TaskEvidence, Verdict, diagnose
from train.diagnosis.model import LARGEST_HEAD, LARGEST_TAIL


@dataclass
class Evidence:
    """Collects what comes of a job's tasks; memory is bounded whatever comes.

    Attributes:
        members: All tasks of the job, those of which nothing was heard included.
    """

    members: Sequence[Member]
    _tasks: dict[str, TaskEvidence] = field(default_factory=dict)
    _tails: dict[str, bytearray] = field(default_factory=dict)

    def add(self, record: object, payload: bytes) -> None:
        """Take one record, and the bytes that came with it."""
        if isinstance(record, Log):
            self._add_log(record.task, payload)
        elif isinstance(record, TaskState):
            self._add_state(record)

    def _of(self, task: str) -> TaskEvidence:
        return self._tasks.get(task, TaskEvidence(task))

    def _add_log(self, task: str, data: bytes) -> None:
        known = self._of(task)
        if len(known.log_head) < LARGEST_HEAD:
            self._tasks[task] = replace(known, log_head=(known.log_head + data)[:LARGEST_HEAD])
        tail = self._tails.setdefault(task, bytearray())
        tail += data
        if len(tail) > 2 * LARGEST_TAIL:
            del tail[:-LARGEST_TAIL]

    def _add_state(self, state: TaskState) -> None:
        known = self._of(state.task)
        if state.phase is Phase.STOPPING:
            known = replace(known, stopped_by_us=True)
        elif state.phase is Phase.EXITED:
            known = replace(known, exit=state.exit, exited_at=state.at, reason=state.reason)
        self._tasks[state.task] = known

    def verdict(self, result: JobResult) -> Verdict | None:
        """The first cause of how the job ended; None where it did not fail."""
        evidence = [
            replace(
                self._of(member.task),
                address=member.address,
                exit=self._of(member.task).exit or result.exits.get(member.task),
                log_tail=bytes(self._tails.get(member.task, b"")[-LARGEST_TAIL:]),
            )
            for member in self.members
        ]
        return diagnose(evidence, result.outcome, result.first_task)
