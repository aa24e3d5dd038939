"""The program works with the lowest versions of its dependencies that pyproject.toml allows.

`scripts/setup` installs the newest ones, with which all other tests run.
"""

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
import paramiko, typer
from fleet.__main__ import main
print(f"paramiko {paramiko.__version__}, typer {typer.__version__}", file=sys.stderr)
sys.exit(main())
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Install the lowest versions of packages in a directory."""
    directory = tmp_path / "packages"
    project = (PROJECT / "pyproject.toml").read_text()
    lowest = [f"{name}=={version}.*" for name, version in re.findall(r'"(paramiko|typer)>=([0-9.]+),', project)]
    assert len(lowest) == 2
    wanted = [*lowest, "pynacl", "--no-deps"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory), *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"these versions cannot be installed: {installed.stderr[-200:]}")
    return directory


def test_a_job_runs_with_the_lowest_versions(program: Program, packages: Path) -> None:
    installed = {
        path.name.split("-")[0]: path.name.split("-")[1].removesuffix(".dist")
        for path in packages.glob("*.dist-info")
    }

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-c", RUN, str(packages), *arguments]
        ran = subprocess.run(
            command, cwd=program.directory, env=program.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        versions = "paramiko {paramiko}, typer {typer}".format(**installed)
        assert versions in ran.stderr
        return ran

    program.script("task.py", "print('it runs')\n")
    assert "invalid value for '--output' / '-o': 'xml' is not one of" in run("status", "-o", "xml", code=2).stderr
    assert "Usage: fleet extend [OPTIONS] TIME\n" in run("extend", "--help").stdout
    assert "--max-cost USD" in run("up", "--help").stdout
    run("up", "--workers", "2")
    assert "it runs" in run("train", "task.py").stdout
    assert "worker-[0-1] | answer" in run("exec", "--", "echo", "answer").stdout
    run("down", "--yes")
