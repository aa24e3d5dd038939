"""Test that hosts install packages with uv from their index, and with pip if they cannot."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.index_server import serve
from tests.process.train.agent.packages.test_index import ENVIRONMENT, PASSWORD, USER
from tests.process.train.agent.packages.test_packages import done, refused, without
from tests.process.train.agent.wheels import uv_wheels, wheel
from train.agent.protocol.records import Bootstrapped, PipSource

DIRECT = {**ENVIRONMENT, "all_proxy": ""}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Return the directory of an index with one package."""
    directory = tmp_path / "wheels"
    wheel(directory, "adds", "1.0")
    return directory


def installer(answer: Bootstrapped, package: str) -> str:
    """Return the program that installed a package."""
    (path,) = Path(answer.python).parents[1].glob(f"lib/python*/site-packages/{package}-*.dist-info/INSTALLER")
    return path.read_text().strip()


def broken_uv(wheels: Path) -> None:
    """Write a wheel of a uv that fails, newer than all others."""
    name = f"uv-99.0.0-py3-none-manylinux_2_17_{os.uname().machine}.whl"
    with zipfile.ZipFile(wheels / name, "w") as archive:
        archive.writestr("uv-99.0.0.data/scripts/uv", "#!/bin/sh\nexit 1\n")


def test_a_host_without_venv_ensurepip_and_pip_gets_uv_and_pip_from_its_index(
    connect: Connect, wheels: Path, tmp_path: Path
) -> None:
    uv_wheels(wheels)
    (wheels / "uv-999.0.0-py3-none-win_amd64.whl").touch()
    agent, python = connect(env=DIRECT), without(tmp_path / "bare", "venv", "ensurepip")
    with serve(wheels, f"{USER}:{PASSWORD}") as index:
        source = PipSource(f"http://{index.location}/simple", USER, PASSWORD)
        answer = done(agent, requirements="adds", source=source, python=python)
        assert installer(answer, "adds") == "uv"
        subprocess.run([answer.python, "-m", "pip", "--version"], check=True)
        above = done(agent, requirements="adds<=1", source=source, python=python, on_top=True)
        assert installer(above, "adds") == "pip"
        assert sum(path.startswith("/files/uv-") for path in index.paths) == 1
        refusal = refused(agent, requirements="adds\nnope", source=source, python=python)
    assert refusal.reason == "pip finds no nope"  # what uv cannot install, pip explains
    assert PASSWORD not in "".join(path.read_text("latin-1") for path in agent.root.rglob("*") if path.is_file())


def test_pip_installs_the_packages_if_uv_cannot(connect: Connect, wheels: Path) -> None:
    agent = connect(env=DIRECT)
    with serve(wheels) as index:
        source = PipSource(f"http://{index.location}/simple")
        assert installer(done(agent, requirements="adds", source=source), "adds") == "pip"
        broken_uv(wheels)
        index.digest = "0" * 64
        refused(agent, requirements="adds>=0.1", source=source)  # pip verifies the hash, too
        assert any(path.startswith("/files/uv-99") for path in index.paths)
        assert not (agent.root / "uv/uv").exists()
        index.digest = ""
        assert installer(done(agent, requirements="adds>=1", source=source), "adds") == "pip"
        assert (agent.root / "uv/uv").exists()
