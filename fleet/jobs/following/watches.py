"""Notice, while a job is followed, for which task the others wait, and a loss that is not a number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.events import Level, Note, Progress, TaskAwaited, find_awaited
from fleet.remote.publication import publish
from train.agent.protocol import records
from train.agent.protocol.records import Log, Phase

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


_STOPPED = b"Invalid loss, terminating training"
_NAMED = rb"(?<![A-Za-z])((?:[A-Za-z]{1,24}_){0,3}(?:[Ll]oss|LOSS))"
_AFTER = rb"[\"']?\s{0,3}[:=]?\s{0,3}(?:tf\.Tensor\()?\[?[-+]?"
# Expressions that begin with fixed text are much faster.
_NEAR = tuple(re.compile(word + _AFTER + rb"(?i:nan|inf)\b") for word in (rb"oss", rb"OSS"))
_VALUE = re.compile(_NAMED + _AFTER + rb"((?i:nan|inf)\b|\d)|" + _STOPPED)
_TAIL = 4096
_OTHERS = (b"best", b"min", b"lowest", b"prev", b"init")  # initial values of the best loss
_PLACES = tuple((word, re.compile(rb"%bs?\W{0,3}(\d{1,9})" % word[1:])) for word in (b"epoch", b"step"))


@dataclass
class _Loss:
    """The latest loss of a slot, and where it began to be wrong; `text` is empty while it is a number."""

    attempt: int
    place: str = ""
    name: str = ""
    text: str = ""

    def read(self, data: bytes) -> None:
        """Read the next output; a value that is cut in two is not read."""
        is_suspect = not self.text and (_STOPPED in data or any(near.search(data) for near in _NEAR))
        for wrong in _VALUE.finditer(data) if is_suspect else ():
            name, value = (wrong[1] or b"loss"), (wrong[2] or b"nan or infinite").lower().decode()
            if not value.isdigit() and not name.lower().startswith(_OTHERS):
                self._find_place(data[: wrong.start()])
                self.name, since = name.decode(), f" since {self.place}" if self.place else ""
                why = "" if wrong[2] else ", and TerminateOnNaN ended the training"
                self.text = f"{self.name.lower()} is {value}{since}{why}"
                break
        self._find_place(data)
        if self.text:
            named = self.name.encode()
            values = [each[2] for each in _VALUE.finditer(data[-_TAIL:]) if each[1] == named]
            self.text = "" if values and values[-1].isdigit() else self.text

    def _find_place(self, data: bytes) -> None:
        for word, pattern in _PLACES:
            last = data.rfind(word[1:])  # the first letter may be a capital one
            match = pattern.match(data, last) if last >= 0 else None
            if match and not (word == b"step" and self.place.startswith("epoch")):
                self.place = f"{word.decode()} {int(match[1])}"


class LossWatch:
    """Reads the losses in the output of all tasks."""

    def __init__(self) -> None:
        self._losses: dict[str, _Loss] = {}  # by slot
        self._warned = 0  # the newest attempt with a warning

    def add(self, record: object, payload: bytes) -> list[Note]:
        """Add the next record; return a warning when a loss is not a number for the first time in an attempt."""
        if not isinstance(record, Log):
            return []
        loss = self._losses.get(record.slot)
        if loss is None or loss.attempt != record.attempt:
            loss = self._losses[record.slot] = _Loss(record.attempt)
        loss.read(payload)
        if not loss.text or record.attempt <= self._warned:
            return []
        self._warned = record.attempt
        return [Note(loss.text, Level.WARNING)]

    def final(self, attempt: int) -> list[Note]:
        """Return a warning if the last loss of an attempt was not a number."""
        texts = [loss.text for loss in self._losses.values() if loss.attempt == attempt and loss.text]
        return [Note(text, Level.WARNING) for text in texts[:1]]
