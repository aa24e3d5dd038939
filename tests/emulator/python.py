"""The Python of a guest: that of Ubuntu's cloud images, on which nothing was installed.

Ubuntu and Debian keep ensurepip in the package python3-venv, pip in python3-pip, the headers in python3-dev, and so
on, and mark the interpreter as managed by apt (PEP 668). Their images have none of these packages.
"""

from __future__ import annotations

import shutil
import sys
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
    if is_managed:
        (library / "EXTERNALLY-MANAGED").write_text(_MARK)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == program else 0o644)
    return program
