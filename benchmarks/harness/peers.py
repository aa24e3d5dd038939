"""Programs to compare with, in environments of their own under .bench/, or from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".bench"
# Program and its package, from PyPI or from Debian.
PYTHON_PEERS = {"ansible": "ansible-core", "clush": "ClusterShell"}
SYSTEM_PEERS = {"ssh": "openssh-client", "rsync": "rsync", "pdsh": "pdsh", "ip": "iproute2", "tc": "iproute2"}
_SYSTEM_DIRECTORIES = ("/usr/sbin", "/sbin")
_INSTALL_S = 300.0


class MissingError(Exception):
    """A program or a right that a measurement needs does not exist here."""


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        MissingError: It is not installed.
    """
    if name in PYTHON_PEERS:
        path = _environment(name) / "bin" / name
        if path.exists():
            return str(path)
    directories = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_DIRECTORIES))
    program = shutil.which(name, path=directories)
    if program is None:
        raise MissingError(f"{name} is not installed")
    return program


def install() -> list[str]:
    """Install the programs that are missing; return those that could not be installed, with the reason."""
    failures = []
    for name, package in PYTHON_PEERS.items():
        if not (_environment(name) / "bin" / name).exists():
            failures += _report(package, partial(_install_from_pypi, name, package))
    packages = sorted({package for name, package in SYSTEM_PEERS.items() if not _is_installed(name)})
    if packages:
        failures += _report(", ".join(packages), partial(_install_from_debian, packages))
    return failures


def _environment(name: str) -> Path:
    return ENVIRONMENTS / name


def _is_installed(name: str) -> bool:
    try:
        return bool(find(name))
    except MissingError:
        return False


def _report(name: str, action: Callable[[], None]) -> list[str]:
    print(f"installing {name}", flush=True)
    try:
        action()
    except (OSError, subprocess.SubprocessError) as error:
        text = getattr(error, "stderr", None) or b""
        return [f"{name} could not be installed: {error} {text[-300:].decode(errors='replace')}".strip()]
    return []


def _install_from_pypi(name: str, package: str) -> None:
    directory = _environment(name)
    _run([sys.executable, "-m", "venv", "--clear", str(directory)])
    _run([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", package])


def _install_from_debian(packages: Sequence[str]) -> None:
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=200"]
    if os.geteuid():
        apt = ["sudo", "-n", *apt]
    subprocess.run([*apt, "update"], check=False, capture_output=True, timeout=_INSTALL_S)
    _run([*apt, "install", "-y", "--no-install-recommends", *packages])


def _run(arguments: Sequence[str]) -> None:
    subprocess.run(arguments, check=True, capture_output=True, timeout=_INSTALL_S)
