"""Programs that a file of settings or an inventory lets run on this computer, and which of them the user accepted."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from provision.directories import make_directory
from provision.model import LocalProgram
from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.ownership import require_ownership

_SYSTEM = ("/bin/", "/lib", "/sbin/", "/usr/")  # the package manager changes these programs
_LARGEST = 64 << 20
_SHOWN = 300  # characters
# Options of ssh_config(5) that run a program or load a library, and Include; quotes may be within a word.
_RUNNING = re.compile(r"exec|command|include|provider|smartcard|xauth", re.IGNORECASE)
_QUOTES = str.maketrans("", "", "\"'\\")


def describe_program(source: str, option: str, command: str) -> LocalProgram:
    """Return a program that an option of a file names."""
    hashed = hashlib.sha256(f"{source}\0{option}\0{command}".encode(errors="replace"))
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for path in (Path(word).expanduser() for word in words if "/" in word):
        if path.is_file() and not str(path.resolve()).startswith(_SYSTEM):
            with path.open("rb") as file:
                hashed.update(b"\0" + hashlib.sha256(file.read(_LARGEST)).digest())
    return LocalProgram(source, f"{option} {command}"[:_SHOWN], hashed.hexdigest())


def programs_of_ssh(source: str, options: Sequence[str]) -> list[LocalProgram]:
    """Return the programs that options of ssh run on this computer, and the configuration that does.

    Args:
        source: The file that has the options.
        options: Arguments of ssh.
    """
    programs = []
    for option, value in itertools.pairwise(options):
        name, _, command = value.partition("=")
        if option == "-o" and name == "ProxyCommand" and command != "none":
            programs.append(describe_program(source, name, command))
        elif option == "-F" and (lines := _running_lines(Path(value).expanduser())):
            made = describe_program(source, "-F", shlex.quote(value))
            programs.append(made._replace(text=f"{made.text}: {'; '.join(lines)}"[:_SHOWN]))
    return programs


def _running_lines(path: Path) -> list[str]:
    """Return the lines of an SSH configuration that can run a program."""
    require_ownership(path)
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST).decode(errors="replace").splitlines() if path.is_file() else []
    except OSError:  # ssh reports it
        return []
    return [line.strip() for line in lines if _RUNNING.search(line.translate(_QUOTES))]


class AcceptedPrograms:
    """The programs that the user accepted, one digest per line of a file.

    Args:
        path: The file; it is created with the first one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def missing(self, programs: Iterable[LocalProgram]) -> list[LocalProgram]:
        """Return the programs that the user has not accepted, each once."""
        accepted = set(self._path.read_text(encoding="utf-8").split()) if self._path.is_file() else set()
        return [each for each in dict.fromkeys(programs) if each.digest not in accepted]

    def add(self, programs: Iterable[LocalProgram]) -> None:
        """Accept programs."""
        make_directory(self._path.parent)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{each.digest}\n" for each in programs)
            file.flush()
            os.fsync(file.fileno())

    def require(self, programs: Iterable[LocalProgram]) -> None:
        """Check that the user has accepted all of these programs.

        Raises:
            ProviderError: a program is new, or has changed.
        """
        for each in self.missing(programs):
            raise ProviderError(
                ErrorKind.USAGE,
                f"{each.source} names a program to run on this computer that you have not accepted: {each.text}",
                cause="it is new, or has changed",
                hint="fleet up asks you once",
                next_steps=[("fleet", "up")],
            )
