"""Scripts and files that the benchmarks run and copy."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

EMIT = """
import os, sys
count = int(sys.argv[1])
block = b"".join((b"%d " % number).ljust(119, b"x") + b"\\n" for number in range(500))
with os.fdopen(1, "wb", 0) as output:
    for _ in range(count // 500):
        view = memoryview(block)
        while view:
            view = view[output.write(view):]
"""
"""Prints lines of 120 bytes as fast as it can."""

RATE = """
import sys, time
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
begin = time.perf_counter()
for number in range(int(rate * seconds)):
    time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
    print(f"step {number} loss 0.4312", flush=True)
"""
"""Prints lines at a rate for some seconds."""

_HEAD = """
import os, sys, time
rank, attempt = os.environ.get("FLEET_RANK") or os.environ["RANK"], os.environ.get("FLEET_ATTEMPT", "1")

def mark(name, *values):
    path = os.path.join(sys.argv[1], f"{name}-{attempt}-{rank}")
    with open(path + ".tmp", "w") as file:
        file.write(" ".join(map(str, values or (time.time(), os.getpid()))))
    os.replace(path + ".tmp", path)

mark("begun")
"""
_STRATEGY = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
_REDUCE = """
@tf.function
def step():
    def each():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([1000]))
    return strategy.run(each)
"""
_TRAIN = """
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(1024, activation="relu", input_shape=(256,)),
        tf.keras.layers.Dense(1024, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
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
"""
_STANDIN = """
def step():
    time.sleep(0.01)
"""
_ONCE = """
step()
mark("stepped")
"""
_UNTIL_KILLED = """
while attempt == "1":
    step()
    mark("stepped")
"""
_STEPS = """
for _ in range(20):
    step()
begin, cpu = time.perf_counter(), time.process_time()
for _ in range(COUNT):
    step()
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
mark("steps", COUNT / seconds, cpu / COUNT, hook())
"""
_HOOK = """
def hook():
    from tensorflow.python.profiler import trace  # what the hook observes of each step

    begin = time.process_time()
    for _ in range(50_000):
        with trace.Trace("step"):
            pass
    return (time.process_time() - begin) / 50_000
"""
_NO_HOOK = """
def hook():
    return 0.0
"""


def first_step(*, is_standin: bool) -> str:
    """Return a script that makes one step."""
    return _HEAD + _STANDIN + _ONCE if is_standin else f"import tensorflow as tf\n{_HEAD}{_STRATEGY}{_REDUCE}{_ONCE}"


def until_killed(*, is_standin: bool) -> str:
    """Return a script that makes steps until its first attempt is killed."""
    work = _STANDIN if is_standin else f"import tensorflow as tf\n{_STRATEGY}{_REDUCE}"
    return _HEAD + work + _UNTIL_KILLED


def steps(count: int, *, is_standin: bool) -> str:
    """Return a script that measures its steps per second, their CPU time, and that of one observed call."""
    end = _STEPS.replace("COUNT", str(count))
    if is_standin:
        return _HEAD + _STANDIN + _NO_HOOK + end
    return f"import tensorflow as tf\n{_HEAD}{_STRATEGY}{_TRAIN}{_HOOK}{end}"


def write_tree(directory: Path, seed: int, files: int, size: int = 10_240) -> None:
    """Write a directory of text files that differ from those of other seeds.

    The seed is their time of change, too: rsync takes files of the same size and second for unchanged.
    """
    shutil.rmtree(directory, ignore_errors=True)
    chooser = random.Random(seed)
    words = [chooser.randbytes(4).hex() for _ in range(3000)]
    text = " ".join(chooser.choices(words, k=30_000)).encode()
    for number in range(files):
        path = directory / f"d{number % 20:02d}" / f"f{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = chooser.randrange(len(text) - size)
        path.write_bytes(b"#%d %d\n" % (seed, number) + text[begin : begin + size - 20])
        os.utime(path, (seed, seed))


def write_random(directory: Path, megabytes: int) -> None:
    """Write a directory with one file that cannot be compressed."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with (directory / "large").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1_000_000))


def write_script(directory: Path, text: str) -> Path:
    """Write a script into a directory of its own; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "task.py"
    path.write_text(text)
    return path
