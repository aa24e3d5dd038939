"""Real TensorFlow in jobs without a plain script: a module with required packages, a shell, R."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.tutorials import losses
from tests.program import THREADS, Program, lines_of
from tests.wire.test_programs import NO_PROXY, served

pytestmark = pytest.mark.e2e

# As in tutorials: from_generator under the strategy, sharded batches, fit with steps.
TASK = """
import argparse
import tensorflow as tf
from .data import examples
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
signature = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
def dataset(context):
    batch = context.get_per_replica_batch_size(16)
    data = tf.data.Dataset.from_generator(examples, output_signature=signature)
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(batch)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.02), loss="mse")
model.fit(strategy.distribute_datasets_from_function(dataset), epochs=args.epochs, steps_per_epoch=20, verbose=2)
print("replicas", strategy.num_replicas_in_sync)
"""
DATA = """
import adds
import numpy as np
def examples():
    random = np.random.default_rng(0)
    for _ in range(512):
        x = random.normal(size=4).astype("float32")
        yield x, np.array([x.sum() + adds.VALUE], "float32")
"""
R_TASK = """
library(reticulate)
tf <- import("tensorflow")
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
with(strategy$scope() %as% scope, {
  model <- tf$keras$Sequential(list(tf$keras$layers$Dense(1L, input_shape = tuple(2L))))
  model$compile(optimizer = "sgd", loss = "mse")
})
# Lists: the reticulate of Debian 12 does not hand arrays to NumPy 2.
x <- list(c(1, 5), c(2, 6), c(3, 7), c(4, 8))
y <- list(6, 8, 10, 12)
data <- tf$data$Dataset$from_tensor_slices(tuple(tf$constant(x, tf$float32), tf$constant(y, tf$float32)))
options <- tf$data$Options()
options$experimental_distribute$auto_shard_policy <- tf$data$experimental$AutoShardPolicy$DATA
model$fit(data$`repeat`()$batch(4L)$with_options(options), epochs = 2L, steps_per_epoch = 4L, verbose = 2L)
cat("replicas", strategy$num_replicas_in_sync, "\\n")
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "wheels", adds="VALUE = 3.0\n") as lines:
        yield lines


def test_a_module_with_packages_trains_from_a_generator_by_a_shell(program: Program, index: str) -> None:
    program.script("lessons/__init__.py", "")
    program.script("lessons/task.py", TASK)
    program.script("lessons/data.py", DATA)
    program.script("requirements.txt", f"{index}adds\n")
    program.run("up", "--workers", "2")
    checked = program.run("check", "-m", "lessons.task", "--local-first", "90", timeout=240, env=NO_PROXY)
    assert checked.text.count("made its first step") + checked.text.count("the script ended after") == 2
    # The same program, started by a shell.
    program.script("run.sh", 'set -e\npython -c "import sys; print(sys.version)"\nexec python -m lessons.task "$@"\n')
    ran = program.run("train", *THREADS, "--", "bash", "run.sh", "--epochs", "3", timeout=240, env=NO_PROXY)
    assert "legacy Keras on all workers" in ran.err
    assert "installing" not in ran.err  # installed by the check
    for task in ("worker-0", "worker-1"):
        values = losses(ran, task)
        assert len(values) == 3
        assert values[-1] < values[0]
        assert "replicas 2" in lines_of(ran, task)


def _reticulate() -> bool:
    if shutil.which("Rscript") is None:
        return False
    return subprocess.run(["Rscript", "-e", "library(reticulate)"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _reticulate(), reason="R or its package reticulate is not installed")
def test_an_r_script_trains(program: Program) -> None:
    program.script("task.R", R_TASK)
    program.run("up", "--workers", "2")
    ran = program.run("train", "task.R", timeout=240)
    assert "legacy Keras on all workers" in ran.err
    for task in ("worker-0", "worker-1"):
        assert len(losses(ran, task)) == 2
        assert any(line.split() == ["replicas", "2"] for line in lines_of(ran, task))
