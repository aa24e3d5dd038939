"""The Python of a guest: that of Ubuntu's cloud images, on which nothing was installed.

Ubuntu keeps ensurepip in the package python3-venv, pip in python3-pip, and the headers in python3-dev, and marks the
interpreter as managed by apt (PEP 668). Its images have none of these packages.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_ABSENT = ("EXTERNALLY-MANAGED", "dist-packages", "ensurepip", "site-packages")
_MARK = """\
[externally-managed]
Error=To install Python packages system-wide, try apt install
 python3-xyz, where xyz is the package you are trying to
 install.
"""


def build(directory: Path) -> Path:
    """Make the installation in `directory`, emptied first, out of the one that runs this program.

    Returns:
        Its interpreter.
    """
    if directory.exists():
        shutil.rmtree(directory)
    library = directory / "lib" / _VERSION
    library.mkdir(parents=True)
    (directory / "bin").mkdir()
    # A copy: the interpreter looks for its library next to the target of a link.
    program = directory / "bin" / _VERSION
    shutil.copy2(original(), program)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*"):
        (directory / "lib" / shared.name).symlink_to(shared)
    for entry in Path(sys.base_prefix, "lib", _VERSION).iterdir():
        if entry.name not in _ABSENT:
            (library / entry.name).symlink_to(entry)
    (library / "site-packages").mkdir()
    (library / "EXTERNALLY-MANAGED").write_text(_MARK)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == program else 0o644)
    return program


def original() -> Path:
    """Return the interpreter of this program outside of any virtual environment."""
    return (Path(sys.base_prefix) / "bin" / _VERSION).resolve()
