"""Report the checkpoint from which a restarted attempt starts, and warn if its epochs do not continue."""

from __future__ import annotations

from typing import NamedTuple

from fleet.events import Level, Note
from train.agent.protocol.records import Phase, Progress, TaskState


class _Epochs(NamedTuple):
    """The epochs that one task printed in one attempt."""

    attempt: int
    first: int
    last: int
    total: int  # -1: not printed
    rising: bool = True  # False: the count started again, as in a second call of fit()


class Restarts:
    """Finds the checkpoint that each attempt after the first one starts from, and reports it once."""

    def __init__(self) -> None:
        """Start before the first record."""
        self._checkpoints: dict[int, str] = {}
        self._epochs: dict[str, _Epochs] = {}
        self._before: dict[str, _Epochs] = {}  # of the attempt before that
        self._warned: set[int] = set()

    def add(self, record: object) -> list[Note]:
        """Add the next record of a task; return the notes that follow from it."""
        if isinstance(record, TaskState) and record.phase is Phase.RUNNING:
            return self._started(record)
        if isinstance(record, Progress) and record.epoch >= 0:
            return self._progressed(record)
        return []

    def _started(self, state: TaskState) -> list[Note]:
        if state.attempt == 1 or state.checkpoint is None or state.attempt in self._checkpoints:
            return []
        self._checkpoints[state.attempt] = state.checkpoint
        if state.checkpoint:
            warnings = [note for task in self._epochs for note in self._warn(task)]
            return [Note(f"attempt {state.attempt} starts from checkpoint {state.checkpoint}"), *warnings]
        why = "none was saved in the checkpoint directory"
        return [Note(f"attempt {state.attempt} starts without a checkpoint of this job: {why}")]

    def _progressed(self, now: Progress) -> list[Note]:
        before = self._epochs.get(now.task)
        if before is not None and before.attempt > now.attempt:
            return []
        if before is not None and before.attempt == now.attempt:
            rising = before.rising and now.epoch >= before.last and now.epochs == before.total
            self._epochs[now.task] = before._replace(last=now.epoch, rising=rising)
            return []
        if before is not None:
            self._before[now.task] = before
        first = now.epoch if now.first_epoch is None else now.first_epoch  # None: from an older agent
        self._epochs[now.task] = _Epochs(now.attempt, first, now.epoch, now.epochs)
        return self._warn(now.task)

    def _warn(self, task: str) -> list[Note]:
        """Compare the attempts of a task, when both the checkpoint and the first epoch of the newer one are known."""
        now, before = self._epochs[task], self._before.get(task)
        checkpoint = self._checkpoints.get(now.attempt, "")
        if before is None or not checkpoint or now.attempt in self._warned or not _begins_again(before, now):
            return []
        self._warned.add(now.attempt)
        reached = f"attempt {before.attempt} had reached epoch {before.last} and checkpoint {checkpoint} exists"
        text = (
            f"attempt {now.attempt} began at epoch {now.first} although {reached}: check that the script restores it"
        )
        return [Note(text, Level.WARNING)]


def _begins_again(before: _Epochs, now: _Epochs) -> bool:
    """Return whether the epochs of `now` begin where those of an earlier attempt began.

    An earlier attempt that called fit() more than once, or finished all epochs of the first call, does not count:
    epoch 1 can then be the first one of the second call.
    """
    unfinished = before.total < 0 or before.last < before.total
    continued = before.rising and unfinished and now.total == before.total
    return continued and now.first == before.first and before.first <= 1 and before.last > before.first
