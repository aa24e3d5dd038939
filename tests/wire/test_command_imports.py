"""Each command imports only what it needs: imports are most of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import Program

RECORD = """
import sys
from fleet.__main__ import main
file = open(sys.argv.pop(1), "w")
code = main()
file.write("\\n".join(sys.modules))
file.close()
sys.exit(code)
"""
PACKAGES = {
    "cryptography", "dns", "fabric", "google", "grpc", "invoke", "jinja2", "paramiko", "pathspec", "platformdirs",
    "requests", "rich", "typer", "virtualenv", "yaml",
}  # fmt: skip
"""Packages of which a command imports few."""
SLOW = {
    "asyncio", "concurrent.futures", "http.client", "importlib.metadata", "multiprocessing", "pydoc", "ssl",
    "statistics", "tomllib", "unittest", "urllib.request",
    "fleet.console.lines", "fleet.console.live.sink", "fleet.jobs.following.follow", "fleet.jobs.inspection",
    "fleet.remote.client", "fleet.remote.ssh.connection", "fleet.remote.ssh.transport", "fleet.reports.page",
    "fleet.results.target", "fleet.state", "provision.gce.provider", "provision.local.provider",
    "train.diagnosis.cause", "train.lint.linter", "train.pack",
}  # fmt: skip
"""Modules that take long to import, or that import many others."""


def list_imports(program: Program, *arguments: str, code: int = 0) -> set[str]:
    """Run a command; return the packages and slow modules that it has imported."""
    record = program.directory / "modules"
    command = [sys.executable, "-c", RECORD, str(record), *arguments]
    done = subprocess.run(
        command, cwd=program.directory, env=program.environment({"FLEET_STATE_DIR": str(program.state)}),
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr.decode()
    names = set(record.read_text().split())
    return (PACKAGES | SLOW) & names


@pytest.fixture
def nothing(tmp_path: Path) -> Program:
    """Return the program without a fleet."""
    return Program(state=tmp_path / "state", directory=tmp_path)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("exec", "--help")])
def test_the_help_imports_only_the_parser(nothing: Program, arguments: tuple[str, ...]) -> None:
    assert list_imports(nothing, *arguments) == {"typer"}


def test_status_without_a_fleet_imports_nothing_about_hosts(nothing: Program) -> None:
    assert list_imports(nothing, "status", code=102) == {"fleet.state", "typer"}
