"""Files of TensorFlow's savers are copied as complete snapshots during writing, and training resumes elsewhere."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.replicators import Yard
from train.agent.checkpoints.formats import named_checkpoints
from train.agent.checkpoints.replicator import Restored
from train.script.keras import NEW_NAMES, OLD_NAMES, VARIABLE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here"),
]

# Trains with each saver of TensorFlow, Keras 3 and tf_keras, an epoch of each in turn: each `fit` continues at its
# backup. Prints at the start what it restored, and at the beginning of each epoch its number.
SCRIPT = r"""
import gc, os, sys, time
gc.disable()  # it takes a fifth of the CPU time of the imports
import tensorflow as tf
import tf_keras
gc.freeze()
gc.enable()
directory, epochs = sys.argv[1], int(sys.argv[2])
tf.config.threading.set_inter_op_parallelism_threads(1)
step = tf.Variable(0, dtype=tf.int64)
weights = tf.Variable(tf.zeros([200, 100]))
checkpoint = tf.train.Checkpoint(step=step, weights=weights)
manager = tf.train.CheckpointManager(checkpoint, directory + "/loop", max_to_keep=2)
manager.restore_or_initialize()
assert float(tf.reduce_max(tf.abs(weights - float(step.numpy())))) == 0.0
kinds = {"keras3": tf.keras, "tf_keras": tf_keras}
assert tf.keras.version().startswith("3.")

def compiled(keras):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(50), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

def callbacks(kind, keras):
    class Report(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print(f"begin {kind} {epoch}", flush=True)
    return [
        keras.callbacks.BackupAndRestore(f"{directory}/{kind}/backup", delete_checkpoint=False),
        keras.callbacks.ModelCheckpoint(f"{directory}/{kind}/best.keras"),
        keras.callbacks.ModelCheckpoint(f"{directory}/{kind}/last.h5"),
        Report(),
    ]

models, shown = {}, []
for kind, keras in kinds.items():
    models[kind] = compiled(keras)
    for name in ("best.keras", "last.h5"):
        if os.path.exists(f"{directory}/{kind}/{name}"):
            shown.append(int(keras.models.load_model(f"{directory}/{kind}/{name}", compile=False).count_params()))
print(f"found {int(step.numpy())} {shown}", flush=True)

x = tf.random.normal([64, 4], seed=1)
y = tf.reduce_sum(x, 1)
while int(step.numpy()) < epochs:
    for kind, keras in kinds.items():
        done = int(step.numpy()) + 1
        models[kind].fit(x, y, epochs=done, batch_size=16, verbose=0, callbacks=callbacks(kind, keras))
    step.assign_add(1)
    weights.assign(tf.ones_like(weights) * float(step.numpy()))
    manager.save()
    time.sleep(3.0)  # Keras names no checkpoint: a directory at rest is complete
print(f"end {int(step.numpy())}", flush=True)
"""
# Reports for each name whether tf_keras and Keras 3 have it. Runs after the script, to start TensorFlow once less.
NAMES_SCRIPT = r"""
import json
def has(root, name):
    for part in name.split("."):
        try:
            root = getattr(root, part)
        except AttributeError:
            return False
    return True
print(json.dumps({name: [has(tf_keras, name), has(tf.keras, name)] for name in json.loads(sys.argv[3])}))
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


def begun(lines: list[bytes], kind: bytes) -> list[int]:
    return [int(line.split()[2]) for line in lines if line.startswith(b"begin " + kind)]


@pytest.mark.slow
def test_each_saver_resumes_on_another_host_from_the_newest_snapshot_and_old_names_are_in_tf_keras_only(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    chief, other = yard.host(), yard.host("worker-1")
    writer = yard.process(chief, [sys.executable, "-c", SCRIPT, str(chief.live), "50"])
    yard.until((chief.live / "loop" / "checkpoint").exists, "the saver that writes last", 200)
    written = chief.newest.number if chief.held is not None else 0
    yard.until(  # the next snapshot may have begun before
        lambda: chief.held is not None and chief.newest.number >= max(3, written + 2), "a snapshot of all savers", 200
    )
    reached = max(begun(yard.output_of(writer), b"keras3"))
    chief.settle()

    assert other.restore(chief.newest, chief) == Restored(chief.newest)
    assert not [name for name in other.content() if "temp" in name or "tmp" in name]
    newest = named_checkpoints((other.live / "loop" / "checkpoint").read_text())[0]
    step = int(newest.rpartition("-")[2])
    assert reached - 3 <= step <= reached + 1

    shutil.rmtree(chief.live)
    names = json.dumps([*OLD_NAMES, *NEW_NAMES])
    command = [sys.executable, "-c", SCRIPT + NAMES_SCRIPT, str(other.live), str(step + 2), names]
    resumed = yard.process(other, command)
    resumed.wait(200)
    *lines, has_names = yard.output_of(resumed)
    assert lines[0] == b"found %d [301, 301, 301, 301]" % step
    for kind in (b"keras3", b"tf_keras"):
        assert step - 1 <= begun(lines, kind)[0] <= step + 1
    assert lines[-1].startswith(b"end")
    check_names(json.loads(has_names))


def check_names(has_names: dict[str, list[bool]]) -> None:
    """Check the names that `fleet lint` knows: the old ones are in tf_keras and not in Keras 3, the new ones not."""
    assert {name for name in NEW_NAMES if has_names.pop(name)[0]} == set()
    has_names.pop("optimizers.legacy")  # in Keras 3 too, to raise an error
    assert {name for name, result in has_names.items() if result != [True, False]} == set()
