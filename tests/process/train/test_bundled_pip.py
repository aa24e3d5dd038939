"""The pip that is sent to hosts without one."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from train.bundled_pip import read_pip_wheel
from train.errors import TrainError


def test_the_pip_of_this_environment_runs_from_its_wheel(tmp_path: Path) -> None:
    wheel = read_pip_wheel("3.12")
    assert read_pip_wheel("3.13") == wheel
    path = tmp_path / "pip.zip"
    path.write_bytes(wheel.data)
    command = [sys.executable, "-S", str(path / "pip"), "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"pip {version('pip')} from {path}")


def test_a_python_that_pip_does_not_support_is_refused() -> None:
    with pytest.raises(TrainError, match=r"no pip is available for Python 3\.2"):
        read_pip_wheel("3.2")
