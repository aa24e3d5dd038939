"""Speed of training under the agent."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection

from benchmarks.harness import by_hand, tensorflow
from benchmarks.harness.accounting import agents_s
from benchmarks.harness.command import CommandError
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import write_script
from benchmarks.harness.session import Session

TITLE = "Training steps under the agent"
_WORKERS = 2
_PEER = "by hand"
_SCRIPT = """
import json, os, sys, time
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

def mark(name, *values):
    path = os.path.join(sys.argv[1], name + "-" + rank)
    with open(path + ".tmp", "w") as file:
        json.dump(values, file)
    os.replace(path + ".tmp", path)

manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
begin = time.perf_counter()
for number in range(100):
    step()
    if number == 50:
        manager.save()
first = time.perf_counter() - begin
mark("begin")
begin, cpu, count = time.perf_counter(), time.process_time(), COUNT
for number in range(count):
    step()
    if number % 300 == 299:
        manager.save()
mark("end", first, count / (time.perf_counter() - begin), (time.process_time() - cpu) / count)
time.sleep(0.5)  # the agents' CPU time is read now
"""
_STANDIN = """
import os, sys
rank = os.environ.get("FLEET_RANK") or os.environ["RANK"]
for name, text in (("begin", "[]"), ("end", "[1.0, 100.0, 0.01]")):
    with open(os.path.join(sys.argv[1], name + "-" + rank), "w") as file:
        file.write(text)
"""


def measure(session: Session) -> None:
    """Train with replicated checkpoints, without a connected client, and by hand without replicas."""
    hosts = session.local(_WORKERS)
    count = session.pick(0, 1200, 3000)
    text = _STANDIN if session.is_quick else _SCRIPT.replace("COUNT", str(count))
    script = write_script(session.directory(), text)

    def fleet() -> Sample:
        hosts.run_fleet("train", "--detach", str(script), "--restarts", "1", "--", str(hosts.marks))
        sample = _sample(hosts, count, hosts.ids)
        hosts.run_fleet("logs", "-f", "-n", "0")
        return sample

    def hand() -> Sample:
        with by_hand.workers(script, hosts.marks, _WORKERS) as processes:
            sample = _sample(hosts, count, ())
            if any(process.wait(tensorflow.DEADLINE_S) for process in processes):
                raise CommandError("a worker failed")
        return sample

    session.measure(
        f"{_WORKERS} workers that share the cores" + (" (stand-in)" if session.is_quick else f", {count:,} steps"),
        {"fleet train": fleet, _PEER: hand},
        [
            Goal("steps", "fleet train", _PEER, 0.99, at_least=True, paired=True),
            Goal("step_cpu", "fleet train", _PEER, paired=True),
            Goal("first_steps", "fleet train", _PEER, paired=True),
        ],
        metric="steps",
        runs=session.pick(1, 10, 20),
        least=session.pick(1, 10, 20),
        warmups=0,
        before=hosts.clear_marks,
    )


def _sample(hosts: Hosts, count: int, agents: Collection[str]) -> Sample:
    """Return the values that the workers have measured, with the CPU time of agents; looking seldom takes none."""
    _await(hosts, "begin")
    before = agents_s(agents)
    _await(hosts, "end")
    spent = agents_s(agents) - before
    marks = [json.loads(mark.read_text()) for mark in hosts.marks.glob("end-?")]
    first, rate, cpu = (statistics.mean(values) for values in zip(*marks, strict=True))
    return {"steps": rate, "step_cpu": 1e3 * (cpu * len(marks) + spent / max(1, count)), "first_steps": first}


def _await(hosts: Hosts, name: str) -> None:
    paths = [hosts.marks / f"{name}-{rank}" for rank in range(_WORKERS)]
    tensorflow.wait_until(lambda: all(path.exists() for path in paths), f"the {name} of training", pause_s=0.1)
