"""The program works with the lowest and the newest versions of its dependencies that pyproject.toml allows."""

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


def version_range(package: str) -> tuple[str, str]:
    """Return the lowest version of a dependency that pyproject.toml allows, and the first one above."""
    match = re.search(rf'"{package}>=([0-9.]+),<([0-9.]+)"', (PROJECT / "pyproject.toml").read_text())
    assert match is not None
    return match[1], match[2]


@pytest.fixture(params=["lowest", "newest"])
def packages(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Install versions of packages, and what they require in addition, in a directory."""
    directory = tmp_path / "packages"
    if request.param == "lowest":
        versions = {name: version_range(name)[0] for name in ("paramiko", "typer")}
        wanted = [*(f"{name}=={version}.*" for name, version in versions.items()), "pynacl", "--no-deps"]
    else:
        wanted = [f"{name}<{version_range(name)[1]}" for name in ("paramiko", "typer")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory), *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"these versions cannot be installed: {installed.stderr[-200:]}")
    return directory


def test_a_job_runs_with_the_lowest_and_the_newest_versions(program: Program, packages: Path) -> None:
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
