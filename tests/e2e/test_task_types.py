"""Task types on real TensorFlow: a coordinator with workers and parameter servers, and an evaluator."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.program import THREADS, Program, lines_of, task_config

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "train" / "examples"

# Chief and worker count together and save; the evaluator, under its own strategy, reads what they saved.
EVALUATED = """
import os, time
import tensorflow as tf
print("TF_CONFIG=" + os.environ["TF_CONFIG"], flush=True)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
print("replicas", strategy.num_replicas_in_sync, flush=True)
with strategy.scope():
    total = tf.Variable(0.0)
    epoch = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(total=total, epoch=epoch)
directory = os.environ["FLEET_CHECKPOINT_DIR"]

@tf.function
def step():
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)

if resolver.task_type == "evaluator":
    for path in tf.train.checkpoints_iterator(directory):
        checkpoint.restore(path)
        print("evaluated", int(epoch.numpy()), float(total.numpy()), float(step().numpy()), flush=True)

is_chief = resolver.task_type == "chief"
manager = tf.train.CheckpointManager(checkpoint, directory if is_chief else directory + "/temp", max_to_keep=2)
for number in range(4):
    for _ in range(5):
        total.assign_add(step())
    epoch.assign_add(1)
    manager.save()
    time.sleep(0.5)
print("trained", float(total.numpy()), flush=True)
"""


def test_an_evaluator_evaluates_the_checkpoints_of_chief_and_worker(program: Program) -> None:
    program.script("task.py", EVALUATED)
    program.run("up", "--workers", "3")
    ran = program.run("train", "task.py", "--chief", "--evaluator", *THREADS, timeout=120)
    for task, replicas in (("chief-0", 2), ("worker-0", 2), ("evaluator-0", 1)):
        assert f"replicas {replicas}" in lines_of(ran, task)
    for task in ("chief-0", "worker-0"):
        assert sorted(task_config("\n".join(lines_of(ran, task)))["cluster"]) == ["chief", "worker"]
        assert "trained 40.0" in lines_of(ran, task)
    config = task_config("\n".join(lines_of(ran, "evaluator-0")))
    assert list(config["cluster"]) == ["evaluator"]
    assert config["task"] == {"type": "evaluator", "index": 0}
    evaluated = [line.split()[1:] for line in lines_of(ran, "evaluator-0") if line.startswith("evaluated")]
    assert [float(total) for _, total, _ in evaluated] == [10.0 * int(epoch) for epoch, _, _ in evaluated]
    assert {item for _, _, item in evaluated} == {"1.0"}
    assert evaluated[-1][0] == "4", "the last checkpoint is evaluated, too"
    assert not program.tasks()


def test_the_parameter_server_example_learns(program: Program) -> None:
    for name in ("parameter_server.py", "digits.npz"):
        shutil.copy(EXAMPLES / name, program.directory)
    program.run("up", "--workers", "2")
    ran = program.run(
        "train", "parameter_server.py", "--chief", "--ps", "1", "--evaluator", "--tasks-per-host", "2", "--",
        "--epochs", "3", timeout=120,
    )  # fmt: skip
    losses = [float(line.rpartition(" ")[2]) for line in lines_of(ran, "chief-0") if line.startswith("Epoch")]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    accuracies = [line for line in lines_of(ran, "evaluator-0") if line.startswith("After epoch")]
    assert accuracies[-1].startswith("After epoch 3: accuracy 0.9")
    assert re.search(r"ps-0 on \S+: was killed by SIGTERM", ran.err)
    assert re.search(r"job \S+ succeeded", ran.err)
    assert not program.tasks()
