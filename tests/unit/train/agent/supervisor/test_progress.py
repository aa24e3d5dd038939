from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.protocol.records import Progress
from train.agent.supervisor.progress import ProgressParser

KERAS_2 = (
    b"Epoch 1/2\n"
    b"\r1/6 [====>.........................] - ETA: 7s - loss: 1.1554 - accuracy: 0.3125" + b"\x08" * 84 + b"\r"
    b"3/6 [==============>...............] - ETA: 0s - loss: 1.2000 - accuracy: 0.3000" + b"\x08" * 84 + b"\r"
    b"6/6 [==============================] - 2s 82ms/step - loss: 1.1673 - accuracy: 0.2917\n"
    b"Epoch 2/2\n"
    b"\r1/6 [====>.........................] - ETA: 0s - loss: 1.1000 - accuracy: 0.4000"
)
KERAS_3 = (
    "Epoch 1/2\n"
    "\r\x1b[1m1/6\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m5s\x1b[0m 1s/step"
    " - accuracy: 0.3125 - loss: 1.5019" + "\x08" * 70 + "\r"
    "\x1b[1m6/6\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 95ms/step"
    " - accuracy: 0.3500 - loss: 1.4000 - val_accuracy: 0.4000 - val_loss: 1.3000\n"
).encode()
VERBOSE_2 = b"Epoch 1/2\n6/6 - 3s - loss: 1.1485 - accuracy: 0.3333 - 3s/epoch - 451ms/step\nEpoch 2/2\n"
VERBOSE_2_KERAS_3 = b"Epoch 1/2\n6/6 - 2s - 258ms/step - accuracy: 0.3125 - loss: 1.5e-05\n"


def parse(data: bytes, size: int = 1 << 20) -> tuple[list[Progress], Progress | None]:
    parser = ProgressParser("worker-0", "worker-0", 1)
    kept: list[Progress] = []
    for start in range(0, len(data), size):
        kept += parser.feed(data[start : start + size], float(start))
    return kept, parser.latest


def place(progress: Progress | None) -> tuple[int, int, int, int]:
    assert progress is not None
    return progress.epoch, progress.epochs, progress.step, progress.steps


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        (KERAS_2, {"loss": 1.1673, "accuracy": 0.2917}),
        (KERAS_3, {"accuracy": 0.35, "loss": 1.4, "val_accuracy": 0.4, "val_loss": 1.3}),
        (VERBOSE_2, {"loss": 1.1485, "accuracy": 0.3333}),
        (VERBOSE_2_KERAS_3, {"accuracy": 0.3125, "loss": 1.5e-05}),
    ],
)
def test_the_formats_of_keras(text: bytes, metrics: dict[str, float], size: int) -> None:
    [end], latest = parse(text + b"\r", size)
    assert (place(end), end.metrics, end.first_epoch) == ((1, 2, 6, 6), metrics, 1)
    assert place(latest)[:2] == ((2, 2) if b"Epoch 2/2" in text else (1, 2))


def test_a_data_set_of_unknown_length() -> None:
    _, latest = parse(b"Epoch 1/3\n\r     12/Unknown - 1s 20ms/step - loss: 0.5\r")
    assert place(latest) == (1, 3, 12, -1)
    colours = b"Epoch 1/3\n\r     \x1b[1m7/Unknown\x1b[0m \x1b[1m3s\x1b[0m 40ms/step - loss: 0.5\r"
    assert place(parse(colours)[1]) == (1, 3, 7, -1)


def test_evaluation_after_the_training_is_no_progress() -> None:
    kept, latest = parse(VERBOSE_2_KERAS_3 + b"\r2/9 [==>....] - ETA: 0s - loss: 9\r9/9 [=====] - 1s - loss: 9.0\n")
    assert len(kept) == 1
    assert place(latest) == (1, 2, 6, 6)


@pytest.mark.parametrize(
    ("line", "where", "metrics"),
    [
        ("Epoch: 0, accuracy: 0.83, train_loss: 0.5", (0, -1, -1, -1), {"accuracy": 0.83, "train_loss": 0.5}),
        ("step 120 loss 0.31", (-1, -1, 120, -1), {"loss": 0.31}),
        ("Epoch 3 loss=0.2", (3, -1, -1, -1), {"loss": 0.2}),
        ("Epoch 3/10, Loss: 1e-3", (3, 10, -1, -1), {"Loss": 1e-3}),
        ("[Epoch 3] step 5/100: loss = nan", (3, -1, 5, 100), {}),
        ("2026-11-01 12:00:00 INFO epoch=2 step=7 loss=0.5", (2, -1, 7, -1), {"loss": 0.5}),
        ("Iteration 40 of 200, reward -1.5", (-1, -1, 40, 200), {"reward": -1.5}),
        ("Epoch 4", (4, -1, -1, -1), {}),
    ],
)
def test_lines_of_custom_loops(line: str, where: tuple[int, int, int, int], metrics: dict[str, float]) -> None:
    _, latest = parse(line.encode() + b"\n")
    assert place(latest) == where
    assert latest is not None
    assert {name: value for name, value in latest.metrics.items() if not math.isnan(value)} == metrics


@pytest.mark.parametrize(
    "line",
    [
        "Saved checkpoint for step 100: /tmp/ckpt-1",
        "Downloading 12/40 files",
        "2026-11-01 12:00:00.123: I tensorflow/core/x.cc:12] Waiting for 1/3 tasks to connect.",
        "the epochal stepladder of batches",
        "Traceback (most recent call last):",
        "1/2",
    ],
)
def test_lines_without_progress(line: str) -> None:
    assert parse(line.encode() + b"\n") == ([], None)


def test_the_end_of_each_epoch_of_a_custom_loop_is_kept_once() -> None:
    kept, _ = parse(b"Epoch 1 loss 0.5\nEpoch 1 loss 0.5\nstep 3 loss 0.4\nEpoch 2 loss 0.3\n")
    assert [item.epoch for item in kept] == [1, 2]


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_break_it(data: bytes, size: int) -> None:
    parse(data, size)


PARTS = [KERAS_2, KERAS_3, VERBOSE_2, b"\r", b"\n", b"1/6 [", b"Epoch 1 loss 0.5\n"]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_the_ends_of_epochs_do_not_depend_on_how_output_is_cut(parts: list[bytes]) -> None:
    data = b"".join(parts)
    whole = [(place(item), item.metrics) for item in parse(data)[0]]
    assert [(place(item), item.metrics) for item in parse(data, 5)[0]] == whole


@pytest.mark.parametrize("pattern", [b"x", b"\r", b"\xff", b"\x08", b"1/6 ", b"Epoch 1 "])
def test_memory_is_bounded_whatever_comes(pattern: bytes) -> None:
    piece = pattern * (65536 // len(pattern))
    parser = ProgressParser("worker-0", "worker-0", 1)
    tracemalloc.start()
    try:
        for _ in range(4 << 20 >> 16):
            parser.feed(piece, 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_sums_over_workers_within_an_epoch_are_not_taken_for_the_loss() -> None:
    parser = ProgressParser("worker-0", "worker-0", 1, workers=2)
    parser.feed(b"Epoch 1/2\n\r1/6 [====>......] - ETA: 7s - loss: 4.6 - accuracy: 1.2\r", 1.0)
    assert parser.latest is not None
    assert (parser.latest.step, parser.latest.metrics) == (1, {})
    parser.feed(b"6/6 [==========] - 2s 82ms/step - loss: 1.5 - accuracy: 0.5\n", 2.0)
    assert parser.latest.metrics == {"loss": 1.5, "accuracy": 0.5}
    parser.feed(b"Epoch 2/2\n\r3/6 [====>......] - ETA: 3s - loss: 2.4\r", 3.0)
    assert (parser.latest.step, parser.latest.metrics) == (3, {"loss": 1.5, "accuracy": 0.5})


def test_epochs_are_timed_if_the_output_has_one_line_per_epoch() -> None:
    parser = ProgressParser("worker-0", "worker-0", 1)
    seen = []
    for number, at in ((1, 100.0), (2, 190.0), (3, 250.0), (4, 310.0)):
        parser.feed(b"Epoch %d/9\n" % number, at - 60)
        parser.feed(b"6/6 - 60s - loss: 1.1485 - 60s/epoch - 10s/step\n", at)
        assert parser.latest is not None
        seen.append((parser.latest.epochs_done, parser.latest.epoch_s))
    assert seen == [(1, 60.0), (2, 90.0), (3, 75.0), (4, 70.0)]
    loose = ProgressParser("worker-0", "worker-0", 1)
    loose.feed(b"Epoch 0/9 loss 0.5\n", 10.0)
    loose.feed(b"Epoch 1/9 loss 0.4\n", 30.0)
    assert loose.latest is not None
    assert (loose.latest.epochs_done, loose.latest.epoch_s) == (2, 20.0)
