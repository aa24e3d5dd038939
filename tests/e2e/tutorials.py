"""The scripts in the pattern of the tutorials, and the check that all workers trained together.

`./scripts/soak tensorflow` runs all of them; the test command runs a sample.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.mnist.make_mnist import write_mnist
from tests.program import THREADS, CommandResult, Program, lines_of

HERE = Path(__file__).parent
LOSS = re.compile(r"(?:^|[\s,])(?:train_)?loss[:=] ?([0-9.]+)")
ONE_FILE = re.compile(r"fleet: the data set has 1 file for \d workers: sharing it out by elements")
SETS_TF_CONFIG = re.compile(r"fleet: the script sets TF_CONFIG \(main\.py:\d+\): using this job's, 2 workers")


def losses(ran: CommandResult, task: str) -> list[float]:
    """Return the losses at the end of each epoch, as one task printed them."""
    return [float(match[1].rstrip(".")) for line in lines_of(ran, task) if (match := LOSS.search(line))]


def mnist(directory: Path, examples: int) -> list[str]:
    """Return options that let mnist.load_data() and tfds.load("mnist") find generated data."""
    file = directory / "mnist.npz"
    write_mnist(file, examples)
    path = os.pathsep.join([str(HERE / "mnist"), str(HERE / "scripts" / "packages")])
    return ["--env", f"PYTHONPATH={path}", "--env", f"MNIST_NPZ={file}"]


@dataclass(frozen=True)
class Tutorial:
    """A script in a directory below `scripts`.

    Attributes:
        examples: Training examples in the data set.
        check: Check of the output of `fleet train` with two workers.
        options: Options of `fleet train`.
        arguments: Arguments of the script.
        workers: Number of workers of the fleet.
    """

    examples: int
    check: Callable[[CommandResult], None]
    options: tuple[str, ...] = THREADS
    arguments: tuple[str, ...] = ()
    workers: int = 2


def _check_keras(ran: CommandResult) -> None:
    assert "legacy Keras" in ran.err
    for task in ("worker-0", "worker-1"):
        assert len([line for line in lines_of(ran, task) if "10/10" in line]) == 3, task


def _check_loop(ran: CommandResult) -> None:
    values = losses(ran, "worker-0")
    assert len(values) == 3
    assert values[-1] < values[0]
    assert losses(ran, "worker-1") == values


def _check_tfds(ran: CommandResult) -> None:
    assert len(SETS_TF_CONFIG.findall(ran.text)) == 1
    assert len(ONE_FILE.findall(ran.text)) == 1  # for training and evaluation data together
    final = []
    for task in ("worker-0", "worker-1"):
        lines = lines_of(ran, task)
        assert len([line for line in lines if "6/6 [" in line]) == 2, task
        assert len([line for line in lines if line.startswith("Eval loss: ")]) == 1, task
        final.append([LOSS.findall(line)[-1] for line in lines if "6/6" in line])
    assert final[0] == final[1]  # the workers trained together


def _check_four_workers(ran: CommandResult) -> None:
    assert len(SETS_TF_CONFIG.findall(ran.text)) == 1
    assert len(re.findall("warning: the script's TF_CONFIG has 4 workers, this job has 2", ran.text)) == 1
    assert len(ONE_FILE.findall(ran.text)) == 1
    for task in ("worker-0", "worker-1"):
        assert len([line for line in lines_of(ran, task) if "2/2 [" in line]) == 2, task


def _check_generator(ran: CommandResult) -> None:
    assert len(SETS_TF_CONFIG.findall(ran.text)) == 1
    assert "`import keras` imports tf-keras on all workers" in ran.err
    final = [LOSS.search(line) for task in ("worker-0", "worker-1") for line in lines_of(ran, task) if "4/4" in line]
    assert len(final) == 2
    assert len({match[1] for match in final if match}) == 1  # the workers trained together


def _check_parameter_servers(ran: CommandResult) -> None:
    assert "legacy Keras" in ran.err
    assert "started: main.py on chief-0, worker-0, ps-0" in ran.err
    lines = lines_of(ran, "chief-0")
    accuracies = [
        float(match[1]) for line in lines if (match := re.match(r"Finished epoch \d, accuracy is (.*)\.", line))
    ]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.9
    assert any(line.startswith("Final loss is") for line in lines)
    assert "ps-0 on worker-2: was killed by SIGTERM" in ran.err
    assert re.search(r"job \S+ succeeded", ran.err)


TUTORIALS = {
    "keras_tutorial": Tutorial(1_300, _check_keras),
    "loop_tutorial": Tutorial(660, _check_loop),
    "tfds_tutorial": Tutorial(800, _check_tfds),
    "four_workers_tutorial": Tutorial(2_000, _check_four_workers),
    "generator_tutorial": Tutorial(512, _check_generator, arguments=("1", "2")),
    "ps_tutorial": Tutorial(1, _check_parameter_servers, options=("--chief", "--ps", "1"), workers=3),
}


def copied(program: Program, directory: Path) -> None:
    """Copy a directory of scripts to the working directory of `program`."""
    shutil.copytree(directory, program.directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def train(
    program: Program, name: str, command: Sequence[str] = ("main.py", "--"), env: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a tutorial on a new fleet, by any command, and check its output; return it."""
    tutorial = TUTORIALS[name]
    copied(program, HERE / "scripts" / name)
    program.run("up", "--workers", str(tutorial.workers))
    options = (*mnist(program.directory.parent, tutorial.examples), *tutorial.options)
    ran = program.run("train", *options, *command, *tutorial.arguments, timeout=240, env=env)
    tutorial.check(ran)
    return ran
