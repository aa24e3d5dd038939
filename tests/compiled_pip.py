"""A wheel of pip with its bytecode, which all tests of a run share.

Each environment that is created from pip's own wheel compiles pip at its first use, which takes longer than the
installation of small packages.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import sys
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from train.bundled_pip import Wheel, read_pip_wheel

VARIABLE = "TESTS_PIP"
"""Environment variable: the directory of the wheel, which exists while the tests run."""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def compiled_pip(directory: Path) -> Path:
    """Return the path of the wheel for this version of Python in a directory; make it if it does not exist."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            _make(directory)
            (directory / "complete").touch()
    (wheel,) = directory.glob("*.whl")
    return wheel


def read_compiled_pip(directory: Path, python: str) -> Wheel:
    """Return the wheel for a version of Python, as `read_pip_wheel`; with bytecode for this version."""
    if python != VERSION:
        return read_pip_wheel(python)
    data = compiled_pip(directory).read_bytes()
    return Wheel(data, hashlib.sha256(data).hexdigest())


def _make(directory: Path) -> None:
    source, tree = directory / "source", directory / "tree"
    wheels = sorted(Path(sys.base_prefix).glob(f"lib/python{VERSION}/ensurepip/_bundled/pip-*.whl"))
    source.write_bytes(wheels[-1].read_bytes() if wheels else read_pip_wheel(VERSION).data)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(tree)
    compileall.compile_dir(tree, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    (info,) = tree.glob("pip-*.dist-info")
    with zipfile.ZipFile(directory / f"{info.stem}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(tree.rglob("*")):
            archive.write(path, path.relative_to(tree))
