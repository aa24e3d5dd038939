"""`./scripts/bench --quick`: rows run, with the other programs that are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROWS = ("exec", "logs", "restart")

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(600)]


def test_rows_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick", "--no-install", *ROWS]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=560,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    problems = [line for line in done.stdout.splitlines() if line.startswith("- Not measured: ")]
    assert not [line for line in problems if not line.endswith("is not installed")], done.stdout + done.stderr
    assert done.returncode == (1 if problems else 0), done.stdout + done.stderr
    assert "| `true` on 2 hosts |" in done.stdout
    assert "| live logs of 2 hosts |" in done.stdout
    assert "| after that, user code of the next attempt |" in done.stdout
