"""Report the task that the others wait for, while a job is followed."""

from __future__ import annotations

from fleet.events import Progress, TaskAwaited, find_awaited
from fleet.remote.publication import publish
from train.agent.protocol import records
from train.agent.protocol.records import Phase

STEADY_S = 10.0
"""Time for which the others wait for the same task before it is named: all periods of the medians are new by then."""


class Awaiting:
    """The running tasks of the latest attempt, and their progress."""

    def __init__(self) -> None:
        self._attempt = 0
        self._running: dict[str, Progress | None] = {}
        self._reported: set[tuple[str, str]] = set()
        self._candidate: tuple[str, str] | None = None
        self._since: dict[str, float] = {}  # first report of each task with this candidate, by the clock of its host

    def add(self, record: object) -> TaskAwaited | None:
        """Return what a record shows for the first time in an attempt: a task that the others wait for.

        Symmetric tasks wait for each other in turns: a task counts if it is the one for `STEADY_S`.
        """
        if not isinstance(record, (records.TaskState, records.Progress)) or record.attempt < self._attempt:
            return None
        if record.attempt > self._attempt:
            self._attempt, self._running, self._reported = record.attempt, {}, set()
            self._candidate = None
        if isinstance(record, records.TaskState):
            if record.phase is Phase.RUNNING:
                self._running.setdefault(record.task, None)
            elif record.phase is not Phase.WAITING:
                self._running.pop(record.task, None)
            else:
                self._running[record.task] = None
            return None
        if record.task not in self._running:
            return None
        self._running[record.task] = publish(record)
        awaited = find_awaited(self._running, self._attempt)
        candidate = (awaited.task, awaited.cause) if awaited else None
        if candidate != self._candidate:
            self._candidate, self._since = candidate, {}
        is_steady = record.at - self._since.setdefault(record.task, record.at) >= STEADY_S
        if candidate is None or not is_steady or candidate in self._reported:
            return None
        self._reported.add(candidate)
        return awaited
