"""The Python of a guest: that of Ubuntu's cloud images, on which only python3-venv was installed.

Ubuntu and Debian keep ensurepip in the package python3-venv, pip in python3-pip, the headers in python3-dev, and so
on, and mark the interpreter as managed by apt (PEP 668). Their images have none of these packages. Guests have
ensurepip, without which fleet downloads uv and pip from the real package index.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_ABSENT = (
    *("EXTERNALLY-MANAGED", "dist-packages", "ensurepip", "site-packages"),
    *("distutils", "idlelib", "lib2to3", "tkinter"),
)
_MARK = """\
[externally-managed]
Error=To install Python packages system-wide, try apt install
 python3-xyz, where xyz is the package you are trying to
 install.
"""
# The pip of this environment with its bytecode: to compile pip takes longer than to install small packages.
_ENSUREPIP = """\
import pathlib, shutil, sysconfig
site = pathlib.Path(sysconfig.get_path("purelib"))
for directory in pathlib.Path({packages!r}).glob("pip*"):
    if directory.name == "pip" or directory.suffix == ".dist-info":
        shutil.copytree(directory, site / directory.name)
"""


@dataclass(frozen=True)
class Source:
    """An installation of Python on this computer, outside of any virtual environment.

    Attributes:
        prefix: Its directory.
        version: ``3.12``.
    """

    prefix: Path
    version: str

    @property
    def program(self) -> Path:
        """Return its interpreter, without links."""
        return (self.prefix / "bin" / f"python{self.version}").resolve()


THIS = Source(Path(sys.base_prefix), f"{sys.version_info.major}.{sys.version_info.minor}")
"""The installation that runs this program."""


def build(directory: Path, source: Source = THIS, *, is_managed: bool = True) -> Path:
    """Make an installation in `directory`, emptied first, from another one, without what the images do not have.

    Args:
        directory: The directory.
        source: The other installation.
        is_managed: Mark it as managed by apt.

    Returns:
        Its interpreter.
    """
    if directory.exists():
        shutil.rmtree(directory)
    name = f"python{source.version}"
    library = directory / "lib" / name
    library.mkdir(parents=True)
    (directory / "bin").mkdir()
    # A copy: the interpreter looks for its library next to the target of a link.
    program = directory / "bin" / name
    shutil.copy2(source.program, program)
    for shared in (source.prefix / "lib").glob("libpython*"):
        (directory / "lib" / shared.name).symlink_to(shared)
    for entry in (source.prefix / "lib" / name).iterdir():
        if entry.name not in _ABSENT:
            (library / entry.name).symlink_to(entry)
    (library / "site-packages").mkdir()
    (library / "ensurepip").mkdir()
    text = _ENSUREPIP.format(packages=sysconfig.get_path("purelib"))
    (library / "ensurepip" / "__main__.py").write_text(text)
    (library / "ensurepip" / "__init__.py").touch()
    if is_managed:
        (library / "EXTERNALLY-MANAGED").write_text(_MARK)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == program else 0o644)
    return program
