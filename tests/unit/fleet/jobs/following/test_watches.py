"""Tests of the task that the others wait for, and of warnings about a loss that is not a number."""

from __future__ import annotations

import pytest

from fleet.events import Level
from fleet.jobs.following.watches import Awaiting, LossWatch
from train.agent.protocol.records import Log, Phase, Progress, TaskState


def test_an_awaited_task_is_reported_once_per_attempt() -> None:
    awaiting = Awaiting()
    for attempt in (1, 2):
        for name in ("worker-0", "worker-1"):
            assert awaiting.add(TaskState(name, name, attempt, Phase.RUNNING, 0.0)) is None
        fast = Progress("worker-0", "worker-0", attempt, 0.0, step_s=0.2, input_s=0.0)
        slow = Progress("worker-1", "worker-1", attempt, 0.0, step_s=0.2, input_s=0.19)
        assert awaiting.add(slow) is None  # the other task is unknown
        assert awaiting.add(fast) is None  # it may be a moment
        assert awaiting.add(slow._replace(at=9.9)) is None
        awaited = awaiting.add(fast._replace(at=10.0))
        assert awaited is not None
        assert (awaited.task, awaited.attempt, awaited.cause) == ("worker-1", attempt, "input")
        assert awaiting.add(slow._replace(at=30.0)) is None
    assert awaiting.add(fast._replace(attempt=1)) is None


@pytest.mark.parametrize("turn_s", [2, 8])
def test_tasks_that_wait_for_each_other_in_turns_are_not_reported(turn_s: int) -> None:
    awaiting = Awaiting()
    tasks = ("worker-0", "worker-1")
    for name in tasks:
        awaiting.add(TaskState(name, name, 1, Phase.RUNNING, 0.0))
    for second in range(120):
        late = tasks[second // turn_s % 2]
        for name, offset_s in zip(tasks, (0.0, 3600.0), strict=True):  # the clocks of the hosts differ
            busy = 0.086 if name == late else 0.02
            at = second + offset_s
            assert awaiting.add(Progress(name, name, 1, at, step_s=0.125, python_s=busy)) is None


def watched(*pieces: bytes, slot: str = "worker-0", watch: LossWatch | None = None) -> tuple[list[str], list[str]]:
    """Return the warnings while these pieces of output arrive, and those at the end."""
    watch = watch or LossWatch()
    notes = [note for piece in pieces for note in watch.add(Log(slot, slot, 1, 0, len(piece)), piece)]
    assert {note.level for note in notes} <= {Level.WARNING}
    return [note.text for note in notes], [note.text for note in watch.final(1)]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"Epoch 1/5\n", b"8/8 - 1s - loss: nan - 1s/epoch\n", b"Epoch 2/5\n"], "loss is nan since epoch 1"),
        ([b"Epoch 3/5\n 1/10 [>...] - ETA: 0s - accuracy: 0.1 - loss: nan"], "loss is nan since epoch 3"),
        ([b"epoch 0 loss 0.5\nepoch 1 loss nan\n"], "loss is nan since epoch 1"),
        ([b"step 10 loss=nan\n", b"step 20 loss=nan\n"], "loss is nan since step 10"),
        ([b"Epoch 2: Loss tf.Tensor(nan, shape=(), dtype=float32)\n"], "loss is nan since epoch 2"),
        ([b"{'train_loss': inf}\n"], "train_loss is inf"),
        ([b"Epoch 1/2\nloss: 0.5 - val_loss: nan\n"], "val_loss is nan since epoch 1"),
        (
            [b"Epoch 1/2\nBatch 4: Invalid loss, terminating training\n", b"8/8 - loss: nan\n"],
            "loss is nan or infinite since epoch 1, and TerminateOnNaN ended the training",
        ),
    ],
)
def test_a_loss_that_is_not_a_number_is_reported_at_once_and_at_the_end(pieces: list[bytes], text: str) -> None:
    assert watched(*pieces) == ([text], [text])


def test_a_loss_that_recovers_is_not_reported_at_the_end() -> None:
    pieces = (b"step 1 loss: nan\n", b"step 2 loss: 0.5\n")
    assert watched(*pieces) == (["loss is nan since step 1"], [])


@pytest.mark.parametrize(
    "piece",
    [
        b"Epoch 1/5 loss: 0.3412 accuracy: nan\n",
        b"val_loss improved from inf to 0.4, saving model\n",
        b"best_loss: inf\n",
        b"INFO: losses: nanoseconds\n",
        b"no loss of nan-values\n",
    ],
)
def test_other_output_is_not_reported(piece: bytes) -> None:
    assert watched(piece) == ([], [])


def test_several_tasks_and_the_next_attempt() -> None:
    watch = LossWatch()
    assert watched(b"loss nan\n", slot="worker-1", watch=watch)[0] == ["loss is nan"]
    assert watched(b"loss nan\n", slot="worker-0", watch=watch) == ([], ["loss is nan"])
    assert [note.text for note in watch.add(Log("worker-0", "worker-0", 2, 0, 9), b"loss nan\n")] == ["loss is nan"]
    assert watch.add(Progress("worker-0", "worker-0", 2, 0.0), b"") == []
