"""Test how paramiko is imported."""

from __future__ import annotations

import subprocess
import sys

import paramiko

from fleet.remote.ssh.internals import PROVEN


def test_paramiko_is_imported_without_invoke() -> None:
    code = (
        "import sys, fleet.remote.ssh.connection, paramiko.config as config; assert config.invoke is None;"
        "assert 'invoke' not in sys.modules; import fabric; print(sorted({'invoke', 'fabric'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "['fabric', 'invoke']\n"


def test_the_installed_version_is_a_proven_one() -> None:
    assert paramiko.__version__.startswith(PROVEN)
