"""`./scripts/bench --quick`: a sample of the groups runs, with the peers that are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Local and distant hosts, peers, and readers of output.
GROUPS = ("exec", "logs")

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(600)]


def test_groups_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick", *GROUPS]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=560,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in GROUPS:
        assert f"\n{name}: " in f"\n{done.stdout}"
    problems = [line for line in done.stdout.splitlines() if line.startswith("    ! ")]
    allowed = ("is not installed", "cannot create a network namespace")
    assert not [line for line in problems if not line.endswith(allowed) and allowed[1] not in line]
