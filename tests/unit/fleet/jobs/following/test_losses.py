"""Warnings about a loss that is not a number, from the output of the tasks."""

from __future__ import annotations

import pytest

from fleet.events import Level
from fleet.jobs.following.losses import LossWatch
from train.agent.protocol.records import Log, Progress


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
