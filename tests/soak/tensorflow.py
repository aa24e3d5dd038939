"""Run the campaign `tensorflow`: all tutorials, an evaluator, and jobs on Compute Engine and Slurm."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import slurm
from tests.cloud import test_gce_bucket
from tests.e2e import test_gce, tutorials
from tests.program import THREADS, Program, lines_of, task_config, wait_for
from train.script import NEWEST_TF_KERAS

# Chief and worker count together and save; the evaluator, under its own strategy, reads what they saved.
_EVALUATED = """
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


_LOSS = re.compile(r"loss: ([0-9.]+)")


def _evaluator(program: Program) -> None:
    program.script("task.py", _EVALUATED)
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


def _killed_worker(program: Program) -> None:
    """The example with a generator trains, until a worker is killed."""
    tutorials.copied(program, Path(__file__).parents[2] / "train" / "examples")
    program.run("up", "--workers", "2")
    client = program.start(
        "train", "generator.py", "--grace", "2", *THREADS, "--", "--epochs", "1000", "--steps", "20"
    )
    logs = "local/*/fleet/jobs/*/*/*/log"
    wait_for(
        "two epochs on both workers",
        lambda: [b"Epoch 3/1000" in log.read_bytes() for log in program.state.glob(logs)] == [True, True],
        deadline_s=180,
    )
    for index in (0, 1):
        (task,) = program.tasks(f"worker-{index}")
        config = json.loads(task.environ()["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": index}
        assert len(config["cluster"]["worker"]) == 2
    task.send_signal(signal.SIGKILL)
    wait_for("both tasks to end", lambda: not program.tasks())
    ran = program.finish(client, code=100)
    assert "worker-1" in ran.err
    assert "SIGKILL" in ran.err
    first, second = (tutorials.losses(ran, f"worker-{index}")[:2] for index in (0, 1))
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
    examples = Path(__file__).parents[2] / "train" / "examples"
    shutil.copy(examples / "keras_fit.py", program.directory / "task.py")
    shutil.copy(examples / "digits.npz", program.directory)
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


def _newest_tensorflow(report: Callable[[str], None], directory: Path) -> None:
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
            report(f"warning: {name} on the newest TensorFlow: {error}")


def _batch_script(directory: Path) -> None:
    """Train the custom loop with srun, in a batch script on two nodes of a real Slurm."""
    examples = Path(__file__).parents[2] / "train" / "examples"
    with slurm.slurm(directory) as cluster:
        shutil.copy(examples / "custom_loop.py", cluster.work / "task.py")
        shutil.copy(examples / "digits.npz", cluster.work)
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


def run(seed: int, rounds: int, report: Callable[[str], None]) -> int:
    """Play all jobs `rounds` times, in random orders; return the number of violations."""
    jobs: list[tuple[str, Callable[[Path], None]]] = [
        *(
            (name, partial(_with_program, partial(tutorials.train, name=name)))
            for name in tutorials.TUTORIALS
            if name != "tfds_tutorial"
        ),
        ("an evaluator for chief and worker", partial(_with_program, _evaluator)),
        ("a slow input pipeline", partial(_with_program, _slow_input)),
        ("the demo", partial(_with_program, _demo)),
        ("a killed worker", partial(_with_program, _killed_worker)),
        ("the README on Compute Engine", partial(_with_program, _readme_on_gce)),
        ("a bucket on Compute Engine", partial(_with_program, _bucket_on_gce)),
        ("the newest TensorFlow", partial(_newest_tensorflow, report)),
        ("a data set of one file", partial(_with_program, _data_set_of_one_file)),
        *([] if slurm.obstacle() else [("a batch script of Slurm", _batch_script)]),
    ]
    chance = random.Random(seed)
    violations = 0
    for _ in range(rounds):
        for name, job in chance.sample(jobs, len(jobs)):
            with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
                try:
                    job(Path(directory))
                except AssertionError as error:
                    violations += 1
                    report(f"violation: {name}: {error}")
                else:
                    report(f"{name}: succeeded")
    return violations
