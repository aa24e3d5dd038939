"""Speed of training under the agent."""

from __future__ import annotations

import statistics

from benchmarks.harness import by_hand, tensorflow
from benchmarks.harness.command import CommandError
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import write_script
from benchmarks.harness.session import Session

TITLE = "Training steps under the agent"
_WORKERS = 2
_PEER = "by hand"
_SCRIPT = """
import os, sys, time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = os.environ.get("FLEET_RANK") or os.environ["RANK"]
directory = os.environ.get("FLEET_CHECKPOINT_DIR") or os.path.join(sys.argv[1], "checkpoints-" + rank)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(512, activation="relu", input_shape=(256,)),
        tf.keras.layers.Dense(512, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    checkpoint = tf.train.Checkpoint(model=model)
data = tf.random.stateless_normal([64, 256], [1, 2])

@tf.function
def step():
    def each():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(data)))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(1e-4 * gradient)
        return loss
    return strategy.run(each)

for _ in range(50):
    step()
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
begin, count = time.perf_counter(), COUNT
for number in range(count):
    step()
    if number % 300 == 0:
        manager.save()
seconds = time.perf_counter() - begin
path = os.path.join(sys.argv[1], "speed-" + rank)
with open(path + ".tmp", "w") as file:
    file.write(repr(count / seconds))
os.replace(path + ".tmp", path)
"""
_STANDIN = """
import os, sys
rank = os.environ.get("FLEET_RANK") or os.environ["RANK"]
with open(os.path.join(sys.argv[1], "speed-" + rank), "w") as file:
    file.write("100.0")
"""


def measure(session: Session) -> None:
    """Train with replicated checkpoints, without a connected client, and by hand without replicas."""
    hosts = session.local(_WORKERS)
    text = _STANDIN if session.is_quick else _SCRIPT.replace("COUNT", session.pick("0", "600", "1500"))
    script = write_script(session.directory(), text)

    def fleet() -> Sample:
        hosts.run_fleet("train", "--detach", str(script), "--restarts", "1", "--", str(hosts.marks))
        tensorflow.wait_until(lambda: len(list(hosts.marks.glob("speed-?"))) == _WORKERS, "the end of training")
        hosts.run_fleet("logs", "-f", "-n", "0")
        return _speed(hosts)

    def hand() -> Sample:
        with by_hand.workers(script, hosts.marks, _WORKERS) as processes:
            if any(process.wait(tensorflow.DEADLINE_S) for process in processes):
                raise CommandError("a worker failed")
        return _speed(hosts)

    session.measure(
        f"{_WORKERS} workers that share the cores" + (" (stand-in)" if session.is_quick else ""),
        {"fleet train": fleet, _PEER: hand},
        [Goal("steps", "fleet train", _PEER, 0.99, at_least=True)],
        metric="steps",
        runs=session.pick(1, 10, 20),
        warmups=0,
        before=hosts.clear_marks,
    )


def _speed(hosts: Hosts) -> Sample:
    return {"steps": statistics.mean(float(mark.read_text()) for mark in hosts.marks.glob("speed-?"))}
