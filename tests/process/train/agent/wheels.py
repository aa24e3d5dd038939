"""Create small wheels in the format of pip, and the environment in which pip finds only these."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(
    directory: Path,
    name: str,
    version: str,
    module: str | Mapping[str, str] = "",
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> Path:
    """Write a wheel of one module, or of files by their paths, below `directory`; return its path.

    Source: https://packaging.python.org/specifications/binary-distribution-format/.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        **({f"{name}.py": module} if isinstance(module, str) else module),
        f"{stem}.dist-info/METADATA": metadata + "".join(f"Provides-Extra: {extra}\n" for extra in extras),
        f"{stem}.dist-info/WHEEL": _WHEEL,
    }
    record = "".join(f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    record_path = f"{stem}.dist-info/RECORD"
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in {**files, record_path: f"{record}{record_path},,\n"}.items():
            archive.writestr(inner, text)
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def pip_environment(directory: Path) -> dict[str, str]:
    """Return variables with which pip finds the wheels of `directory` and no others."""
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory)}


def uv_wheels(directory: Path) -> None:
    """Download wheels of uv and pip into a directory; skip the test if that is not possible."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), "uv", "pip"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("uv cannot be downloaded")
