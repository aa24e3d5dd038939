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


def test_paramiko_is_imported_without_the_module_of_package_versions() -> None:
    code = (
        "import sys, fleet.remote.ssh.connection, paramiko\n"
        "print('importlib.metadata' in sys.modules, paramiko.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == f"False {paramiko.__version__}\n"


def test_an_unproven_version_of_paramiko_is_imported_with_all_its_dependencies() -> None:
    code = (
        "import os, sys; list_names = os.listdir\n"
        "os.listdir = lambda *path: [name.replace('paramiko-', 'paramiko-0.') for name in list_names(*path)]\n"
        "import fleet.remote.ssh.connection\n"
        "print(sorted({'importlib.metadata', 'invoke'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "['importlib.metadata', 'invoke']\n"


def test_the_installed_version_is_a_proven_one() -> None:
    assert paramiko.__version__.startswith(PROVEN)
