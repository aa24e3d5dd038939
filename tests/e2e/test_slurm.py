"""Real TensorFlow on two nodes of a real Slurm, started by srun."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import wait_for
from tests.slurm import Slurm, obstacle, slurm

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "train" / "examples"
LOSS = re.compile(r"loss: ([0-9.]+)")
BATCH = """\
#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1
srun -l fleet agent task.py -- --epochs 2
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := obstacle():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm")) as result:
        shutil.copy(EXAMPLES / "custom_loop.py", result.work / "task.py")
        shutil.copy(EXAMPLES / "digits.npz", result.work)
        yield result


def losses(text: str, prefix: str) -> list[float]:
    """Return the losses that one task printed."""
    lines = [line for line in text.splitlines() if line.startswith(prefix)]
    return [float(item[1].rstrip(".")) for line in lines for item in LOSS.finditer(line)]


def assert_trained_as_one(text: str, *prefixes: str) -> None:
    first, second = (losses(text, prefix) for prefix in prefixes)
    assert len(first) >= 2, text
    assert first[-1] == second[-1]  # each task applies the gradient of the whole batch
    assert first[-1] < 0.8 * first[0]


def test_a_batch_script_trains_through_srun(cluster: Slurm) -> None:
    script = cluster.script("job.sh", BATCH)
    [job] = cluster.run("sbatch", "--parsable", "-o", "out", "-e", "err", str(script)).text.split()
    err = cluster.work / "err"
    wait_for("the job's end", lambda: err.exists() and cluster.has_no_jobs(), 90)
    assert f"job fleet-{job}.0 succeeded" in err.read_text()
    assert_trained_as_one((cluster.work / "out").read_text(), "0: ", "1: ")
    assert not list(cluster.work.glob(".fleet-*"))
