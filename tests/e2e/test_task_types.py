"""Task types on real TensorFlow: a coordinator, a worker, a parameter server, and an evaluator."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.program import Program, lines_of

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "train" / "examples"


def test_the_parameter_server_example_learns(program: Program) -> None:
    for name in ("parameter_server.py", "digits.npz"):
        shutil.copy(EXAMPLES / name, program.directory)
    program.run("up", "--workers", "2")
    ran = program.run(
        "train", "parameter_server.py", "--chief", "--ps", "1", "--evaluator", "--tasks-per-host", "2", "--",
        "--epochs", "3", timeout=240,
    )  # fmt: skip
    losses = [float(line.rpartition(" ")[2]) for line in lines_of(ran, "chief-0") if line.startswith("Epoch")]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    accuracies = [line for line in lines_of(ran, "evaluator-0") if line.startswith("After epoch")]
    assert accuracies[-1].startswith("After epoch 3: accuracy 0.9")
    assert re.search(r"ps-0 on \S+: was killed by SIGTERM", ran.err)
    assert re.search(r"job \S+ succeeded", ran.err)
    assert not program.tasks()
