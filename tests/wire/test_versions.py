"""The program works with the lowest versions of its dependencies that pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

PROJECT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import paramiko
from fleet.__main__ import main
print(f"paramiko {paramiko.__version__}", file=sys.stderr)
sys.exit(main())
"""


def lowest_version(package: str) -> str:
    """Return the lowest version of a dependency that pyproject.toml allows."""
    match = re.search(rf'"{package}>=([0-9.]+)', (PROJECT / "pyproject.toml").read_text())
    assert match is not None
    return match[1]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Install the lowest versions, and what they require in addition, in a directory."""
    directory = tmp_path / "packages"
    wanted = [f"paramiko=={lowest_version('paramiko')}.*", "pynacl"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"the lowest versions cannot be installed: {installed.stderr[-200:]}")
    return directory


def test_a_job_runs_with_the_lowest_versions(program: Program, packages: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-W", "ignore", "-c", RUN, str(packages), *arguments]
        ran = subprocess.run(
            command, cwd=program.directory, env=program.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert f"paramiko {lowest_version('paramiko')}." in ran.stderr
        return ran.stdout

    program.script("task.py", "print('it runs')\n")
    run("up", "--workers", "2")
    assert "it runs" in run("train", "task.py")
    assert "worker-[0-1] | answer" in run("exec", "--", "echo", "answer")
    run("down", "--yes")
