"""Real TensorFlow on a local fleet: the demo, the examples, the tutorials' scripts, and the end of a task."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.tutorials import copied, losses
from tests.program import THREADS, Program, wait_for

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "train" / "examples"


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


def test_a_tutorial_on_a_data_set_of_one_file_runs_unchanged(program: Program) -> None:
    """`./scripts/soak tensorflow` runs all tutorials."""
    ran = tutorials.train(program, "tfds_tutorial")
    assert "legacy Keras" in ran.err
    events = program.run("logs", "-o", "json").events
    progress = [event for event in events if event["event"] == "progress" and event["task"] == "worker-0"]
    fit = [event for event in progress if event["steps"] == 6]
    assert fit[-1]["epoch"] == fit[-1]["epochs"] == 2
    assert fit[-1]["step"] == 6
    assert fit[-1]["metrics"]["loss"] < fit[0]["metrics"]["loss"]


def test_a_tutorial_on_generators_with_keras_3_imports_runs_unchanged(program: Program) -> None:
    tutorials.train(program, "generator_tutorial")
    refused = program.run("train", "main.py", "--no-adapt", "--", "2", code=14)
    assert "works with one worker only" in refused.err
    assert "MW601 hint" in program.run("lint", "main.py").text


def test_a_killed_worker_ends_all_tensorflow_processes(program: Program) -> None:
    """The example with a generator trains, until a worker is killed."""
    copied(program, EXAMPLES)
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
    first, second = (losses(ran, f"worker-{index}")[:2] for index in (0, 1))
    assert first == second  # the workers trained together
    assert first[1] < first[0]
