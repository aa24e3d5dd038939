"""Build an interpreter whose ensurepip has pip with its bytecode."""

from __future__ import annotations

import compileall
import fcntl
import os
import sys
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from tests.emulator import python as bare_python
from train.bundled_pip import read_pip_wheel


def shared_interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter that the workers of pytest-xdist share.

    Each environment that is created with another interpreter compiles pip at its first use, which takes longer than
    the installation of small packages.
    """
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fleet-interpreter"
    python = directory / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    with (directory.parent / "fleet-interpreter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            bare_python.build(directory)
            _add_pip(directory)
            (directory / "complete").touch()
    return str(python)


def _add_pip(directory: Path) -> None:
    (library,) = directory.glob("lib/python*")
    bundled = library / "ensurepip" / "_bundled"
    bundled.mkdir(parents=True)
    wheels = sorted(Path(sys.base_prefix).glob(f"lib/{library.name}/ensurepip/_bundled/pip-*.whl"))
    source, tree = directory / "pip.whl", directory / "pip"
    source.write_bytes(
        wheels[-1].read_bytes() if wheels else read_pip_wheel(library.name.removeprefix("python")).data
    )
    with zipfile.ZipFile(source) as archive:
        archive.extractall(tree)
    compileall.compile_dir(tree, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    (info,) = tree.glob("pip-*.dist-info")
    with zipfile.ZipFile(bundled / f"{info.stem}-py3-none-any.whl", "w") as archive:
        for path in sorted(tree.rglob("*")):
            archive.write(path, path.relative_to(tree))
