"""Run the campaign `tensorflow`: all tutorials, the examples, and jobs on Compute Engine and Slurm."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests import slurm
from tests.cloud import test_gce_bucket
from tests.e2e import test_gce, tutorials
from tests.program import THREADS, Program, wait_for
from tests.soak.cases import Case
from train.script import NEWEST_TF_KERAS

_EXAMPLES = Path(__file__).parents[2] / "train" / "examples"
_LOSS = re.compile(r"loss: ([0-9.]+)")


def _generator(program: Program) -> None:
    """Train the example with a generator."""
    tutorials.copied(program, _EXAMPLES)
    program.run("up", "--workers", "2")
    ran = program.run("train", "generator.py", *THREADS, "--", "--epochs", "2", "--steps", "20", timeout=240)
    first, second = (tutorials.losses(ran, f"worker-{index}") for index in (0, 1))
    assert first == second  # the workers trained together
    assert first[1] < first[0]


def _data_set_of_one_file(program: Program) -> None:
    """Run the tutorial, and check the progress that its job recorded."""
    ran = tutorials.train(program, "tfds_tutorial")
    assert "legacy Keras" in ran.err
    events = program.run("logs", "-o", "json").events
    progress = [event for event in events if event["event"] == "progress" and event["task"] == "worker-0"]
    fit = [event for event in progress if event["steps"] == 6]
    assert fit[-1]["epoch"] == fit[-1]["epochs"] == 2
    assert fit[-1]["step"] == 6
    assert fit[-1]["metrics"]["loss"] < fit[0]["metrics"]["loss"]


def _readme_on_gce(program: Program) -> None:
    """Install TensorFlow on instances, and train with it."""
    shutil.copy(_EXAMPLES / "keras_fit.py", program.directory / "task.py")
    shutil.copy(_EXAMPLES / "digits.npz", program.directory)
    with test_gce.emulator_in(program.directory.parent) as emulator:
        test_gce.rent(program, emulator)
        ran = test_gce.run_pages(program, emulator)
    for task in ("worker-0", "worker-1"):
        first, last = tutorials.losses(ran, task)
        assert last < first


def _bucket_on_gce(program: Program) -> None:
    """Keep checkpoints in a bucket, after the account of the instance got its roles."""
    with test_gce.emulator_in(program.directory.parent) as emulator:
        test_gce_bucket.train_with_bucket(program, emulator, is_denied_first=True)


def _demo(program: Program) -> None:
    ran = program.run("demo", timeout=300)
    for task in ("worker-0", "worker-1"):
        values = tutorials.losses(ran, task)
        assert len(values) == 3
        assert values[-1] < 0.5 * values[0]
    assert "legacy Keras" in ran.err
    assert "0 left" in ran.err
    assert not program.processes()


_SLOW_INPUT = """
import os, time
import numpy as np
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
pause_s = 0.02 * int(os.environ["FLEET_TASK_INDEX"])
def wait(x):
    time.sleep(pause_s)
    return x
def example(x):
    return tf.ensure_shape(tf.py_function(wait, [x], tf.float32), [8]), 1.0
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensor_slices(np.ones((64, 8), "float32")).repeat().map(example).batch(8)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(8,))])
    model.compile("sgd", "mse")
model.fit(data.with_options(options), steps_per_epoch=60, epochs=6, verbose=2)
"""


def _slow_input(program: Program) -> None:
    """The worker with the slow input pipeline is named, and the other one waits for it."""
    program.script("task.py", _SLOW_INPUT)
    program.run("up", "--workers", "2")
    ran = program.run("train", *THREADS, "task.py", "--pull", "results", timeout=240)
    assert "worker-[0-1]: importing tensorflow" in ran.err, ran.err
    assert "the others wait for worker-1 (input: " in ran.err, ran.err
    assert "the others wait for worker-0" not in ran.err
    inputs = {}
    for path in program.directory.glob("results/**/attempt-1.telemetry.jsonl"):
        samples = list(map(json.loads, path.read_text().splitlines()))
        inputs[samples[0]["task"]] = max(sample["input_s"] or 0.0 for sample in samples)
    assert inputs["worker-1"] > 10 * inputs["worker-0"]


def _newest_tensorflow(directory: Path) -> None:
    """Run the tutorials on the newest TensorFlow or release candidate of the index; a failure is a warning."""
    python = directory / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    install = (python, "-m", "pip", "install", "-q")
    for words in (("--pre", "tensorflow"), ("tensorboard",), ("--no-deps", f"tf-keras=={NEWEST_TF_KERAS}")):
        subprocess.run([*install, *words], check=True)
    for name in tutorials.TUTORIALS:
        path = directory / name
        path.mkdir()

        def job(program: Program, name: str = name) -> None:
            program.script("fleet.toml", f'[fleet]\npython = "{python}"\n')
            tutorials.train(program, name)

        try:
            _with_program(job, path)
        except AssertionError as error:
            print(f"warning: {name} on the newest TensorFlow: {error}", flush=True)


def _batch_script(directory: Path) -> None:
    """Train the custom loop with srun, in a batch script on two nodes of a real Slurm."""
    with slurm.slurm(directory) as cluster:
        shutil.copy(_EXAMPLES / "custom_loop.py", cluster.work / "task.py")
        shutil.copy(_EXAMPLES / "digits.npz", cluster.work)
        lines = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\nsrun -l fleet agent task.py -- --epochs 2\n"
        words = ("sbatch", "--parsable", "-o", "out", "-e", "err", str(cluster.script("job.sh", lines)))
        [job] = cluster.run(*words).text.split()
        err = cluster.work / "err"
        wait_for("the job's end", lambda: err.exists() and cluster.has_no_jobs(), 90)
        assert f"job fleet-{job}.0 succeeded" in err.read_text()
        printed = (cluster.work / "out").read_text().splitlines()
        assert not list(cluster.work.glob(".fleet-*"))
    first, second = (
        [float(loss[1].rstrip(".")) for line in printed if line.startswith(task) and (loss := _LOSS.search(line))]
        for task in ("0: ", "1: ")
    )
    assert len(first) >= 2, printed
    assert first[-1] == second[-1]  # each task applies the gradient of the whole batch
    assert first[-1] < 0.8 * first[0]


def _with_program(job: Callable[[Program], object], directory: Path) -> None:
    (directory / "work").mkdir()
    program = Program(state=directory / "state", directory=directory / "work")
    try:
        job(program)
    finally:
        program.close()


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all jobs, in a random order."""
    jobs: dict[str, Callable[[Program], object]] = {
        name: partial(tutorials.train, name=name) for name in tutorials.TUTORIALS if name != "tfds_tutorial"
    }
    jobs |= {
        "a slow input pipeline": _slow_input,
        "the demo": _demo,
        "the example with a generator": _generator,
        "the README on Compute Engine": _readme_on_gce,
        "a bucket on Compute Engine": _bucket_on_gce,
        "a data set of one file": _data_set_of_one_file,
    }
    made: list[Case] = [(name, partial(_with_program, job)) for name, job in jobs.items()]
    made.append(("the newest TensorFlow", _newest_tensorflow))
    made += [] if slurm.obstacle() else [("a batch script of Slurm", _batch_script)]
    yield from chance.sample(made, len(made))
