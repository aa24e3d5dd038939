"""Real TensorFlow in jobs without a plain script: a tutorial with required packages by a shell, and R."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tutorials
from tests.e2e.tutorials import losses
from tests.program import Program, lines_of
from tests.wire.test_programs import NO_PROXY, served

pytestmark = pytest.mark.e2e

R_TASK = """
library(reticulate)
tf <- import("tensorflow")
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
with(strategy$scope() %as% scope, {
  model <- tf$keras$Sequential(list(tf$keras$layers$Dense(1L, input_shape = tuple(2L))))
  model$compile(optimizer = "sgd", loss = "mse")
})
# Lists: the reticulate of Debian 12 does not hand arrays to NumPy 2.
x <- list(c(1, 5), c(2, 6), c(3, 7), c(4, 8))
y <- list(6, 8, 10, 12)
data <- tf$data$Dataset$from_tensor_slices(tuple(tf$constant(x, tf$float32), tf$constant(y, tf$float32)))
options <- tf$data$Options()
options$experimental_distribute$auto_shard_policy <- tf$data$experimental$AutoShardPolicy$DATA
model$fit(data$`repeat`()$batch(4L)$with_options(options), epochs = 2L, steps_per_epoch = 4L, verbose = 2L)
cat("replicas", strategy$num_replicas_in_sync, "\\n")
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "wheels", adds="VALUE = 3.0\n") as lines:
        yield lines


def test_a_tutorial_on_generators_with_keras_3_imports_runs_unchanged(program: Program, index: str) -> None:
    """A shell starts it, in an environment with another package; `./scripts/soak tensorflow` runs all tutorials."""
    program.script("requirements.txt", f"{index}adds\n")
    program.script("run.sh", 'set -e\npython -c "import adds; print(adds.VALUE)"\nexec python -m main "$@"\n')
    ran = tutorials.train(program, "generator_tutorial", ("--", "bash", "run.sh"), env=NO_PROXY)
    assert "installing packages" in ran.err
    for task in ("worker-0", "worker-1"):
        assert "3.0" in lines_of(ran, task)
    refused = program.run("train", "main.py", "--no-adapt", "--no-requirements", "--", "1", "2", code=14)
    assert "works with one worker only" in refused.err
    assert "MW601 hint" in program.run("lint", "main.py").text


def _reticulate() -> bool:
    if shutil.which("Rscript") is None:
        return False
    return subprocess.run(["Rscript", "-e", "library(reticulate)"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _reticulate(), reason="R or its package reticulate is not installed")
def test_an_r_script_trains(program: Program) -> None:
    program.script("task.R", R_TASK)
    program.run("up", "--workers", "2")
    ran = program.run("train", "task.R", timeout=240)
    assert "legacy Keras on all workers" in ran.err
    for task in ("worker-0", "worker-1"):
        assert len(losses(ran, task)) == 2
        assert any(line.split() == ["replicas", "2"] for line in lines_of(ran, task))
