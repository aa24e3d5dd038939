"""Real TensorFlow on a local fleet: the examples, the tutorials' scripts, and the end of a task."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.mnist.make_mnist import EXAMPLES as EXAMPLE_COUNT
from tests.e2e.mnist.make_mnist import write_mnist
from tests.program import CommandResult, Program, lines_of, task_config, wait_for

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "train" / "examples"
LOSS = re.compile(r"(?:^|[\s,])(?:train_)?loss[:=] ?([0-9.]+)")


def losses(ran: CommandResult, task: str) -> list[float]:
    """Return the losses at the end of each epoch, as one task printed them."""
    return [float(match[1].rstrip(".")) for line in lines_of(ran, task) if (match := LOSS.search(line))]


def copied(program: Program, directory: Path) -> None:
    shutil.copytree(directory, program.directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def mnist(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Return options that let mnist.load_data() and tfds.load("mnist") find generated data."""
    file = tmp_path / "mnist.npz"
    write_mnist(file, getattr(request, "param", EXAMPLE_COUNT))
    directories = os.pathsep.join([str(HERE / "mnist"), str(HERE / "scripts" / "packages")])
    return ["--env", f"PYTHONPATH={directories}", "--env", f"MNIST_NPZ={file}"]


def test_the_demo_trains_and_deletes_its_fleet(program: Program) -> None:
    ran = program.run("demo", timeout=180)
    for task in ("worker-0", "worker-1"):
        values = losses(ran, task)
        assert len(values) == 5
        assert values[-1] < 0.5 * values[0]
    assert "legacy Keras" in ran.err
    assert "0 left" in ran.err
    assert not program.processes()
    assert not list((program.state / "local").glob("*"))
    program.run("status", code=102)


def test_the_tutorial_on_keras_fit_runs_unchanged(program: Program, mnist: list[str]) -> None:
    copied(program, HERE / "scripts" / "keras_tutorial")
    program.run("up", "--workers", "2")
    ran = program.run("train", "main.py", *mnist, timeout=240)
    assert "legacy Keras" in ran.err
    final = [line for line in lines_of(ran, "worker-1") if "20/20" in line]
    assert len(final) == 3
    events = program.run("logs", "-o", "json").events
    progress = [event for event in events if event["event"] == "progress" and event["task"] == "worker-0"]
    assert progress[-1]["epoch"] == progress[-1]["epochs"] == 3
    assert progress[-1]["step"] == progress[-1]["steps"] == 20
    assert progress[-1]["metrics"]["loss"] < progress[0]["metrics"]["loss"]


def test_the_tutorial_on_custom_loops_runs_unchanged(program: Program, mnist: list[str]) -> None:
    copied(program, HERE / "scripts" / "loop_tutorial")
    program.run("up", "--workers", "2")
    ran = program.run("train", "main.py", *mnist, timeout=240)
    values = losses(ran, "worker-0")
    assert len(values) == 3
    assert values[-1] < values[0]
    assert losses(ran, "worker-1") == values


ONE_FILE = "fleet: the data set has 1 file for 2 workers: sharing it out by elements"


@pytest.mark.parametrize("mnist", [2_000], indirect=True)
def test_the_tutorial_on_a_data_set_of_one_file_runs_unchanged(program: Program, mnist: list[str]) -> None:
    copied(program, HERE / "scripts" / "tfds_tutorial")
    program.run("up", "--workers", "2")
    ran = program.run("train", "main.py", *mnist, timeout=240)
    assert ran.text.count(ONE_FILE) == 1  # for training and evaluation data together
    for task in ("worker-0", "worker-1"):
        lines = lines_of(ran, task)
        assert len([line for line in lines if "15/15 [" in line]) == 2, task
        assert len([line for line in lines if line.startswith("Eval loss: ")]) == 1, task
    final = [
        LOSS.findall(line)[-1] for task in ("worker-0", "worker-1") for line in lines_of(ran, task) if "15/15" in line
    ]
    assert final[:2] == final[2:]  # the workers trained together


@pytest.mark.parametrize("mnist", [2_000], indirect=True)
def test_a_tutorial_for_four_workers_runs_unchanged_on_two(program: Program, mnist: list[str]) -> None:
    copied(program, HERE / "scripts" / "four_workers_tutorial")
    program.run("up", "--workers", "2")
    ran = program.run("train", "main.py", *mnist, timeout=240)
    assert ran.text.count(ONE_FILE) == 1
    for task in ("worker-0", "worker-1"):
        assert len([line for line in lines_of(ran, task) if "2/2 [" in line]) == 2, task


@pytest.mark.parametrize("mnist", [512], indirect=True)
def test_a_tutorial_on_generators_with_keras_3_imports_runs_unchanged(program: Program, mnist: list[str]) -> None:
    copied(program, HERE / "scripts" / "generator_tutorial")
    program.run("up", "--workers", "2")
    refused = program.run("train", "main.py", "--no-adapt", *mnist, "--", "2", code=14)
    assert "works with one worker only" in refused.err
    assert "MW601 hint" in program.run("lint", "main.py").text
    ran = program.run("train", "main.py", *mnist, "--", "2", timeout=240)
    assert "`import keras` imports tf-keras on all workers" in ran.err
    final = [LOSS.search(line) for task in ("worker-0", "worker-1") for line in lines_of(ran, task) if "4/4" in line]
    assert len(final) == 2
    assert len({match[1] for match in final if match}) == 1  # the workers trained together


def test_the_other_examples_train_on_one_fleet(program: Program) -> None:
    copied(program, EXAMPLES)
    program.run("up", "--workers", "2")
    for script in ("custom_loop.py", "generator.py"):
        ran = program.run("train", script, "--", "--epochs", "2", timeout=180)
        values = losses(ran, "worker-1")
        assert len(values) == 2, (script, ran.text[-2000:])
        assert values[-1] < values[0], script


def test_a_killed_worker_ends_all_tensorflow_processes(program: Program) -> None:
    program.script(
        "task.py",
        "import os, json, tensorflow as tf\n"
        "print('TF_CONFIG=' + os.environ['TF_CONFIG'])\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "resolver = strategy.cluster_resolver\n"
        "print('resolved', resolver.task_type, resolver.task_id, strategy.num_replicas_in_sync)\n"
        "@tf.function\n"
        "def step():\n"
        "    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)\n"
        "for number in range(10**9):\n"
        "    step()\n"
        "    if number == 10: print('stepping')\n",
    )
    program.run("up", "--workers", "2")
    client = program.start("train", "task.py", "--grace", "2")
    wait_for(
        "steps on both workers",
        lambda: (
            all(b"stepping" in log.read_bytes() for log in program.state.glob("local/*/fleet/jobs/*/*/*/log"))
            and len(program.tasks()) == 2
        ),
        deadline_s=90,
    )
    (victim,) = program.tasks("worker-1")
    victim.send_signal(signal.SIGKILL)
    wait_for("both tasks to end", lambda: not program.tasks())
    ran = program.finish(client, code=100)
    assert "worker-1" in ran.err
    assert "SIGKILL" in ran.err
    for index in (0, 1):
        lines = lines_of(ran, f"worker-{index}")
        assert task_config("\n".join(lines))["task"] == {"type": "worker", "index": index}
        assert f"resolved worker {index} 2" in lines
