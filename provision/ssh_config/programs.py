"""Programs that a file of settings or an inventory lets run on this computer, and which of them the user accepted."""

from __future__ import annotations

import contextlib
import functools
import glob
import grp
import hashlib
import itertools
import os
import pwd
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from provision.directories import home_directory, make_directory
from provision.model import Host, LocalProgram
from provision.provider import ErrorKind, ProviderError

# The package manager changes the files in these directories; ssh reads those in the other two without an inventory.
_SYSTEM = tuple(map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")))
_OWN = (home_directory() / ".ssh", Path("/etc/ssh"))
_LARGEST = 64 << 20
_SHOWN = 300  # characters
# Options of ssh_config(5) that run a program or load a library, and Include; quotes may be within a word.
_RUNNING = re.compile(r"exec|command|include|provider|smartcard|xauth", re.IGNORECASE)
_QUOTES = str.maketrans("", "", "\"'\\")
_EQUALS = re.compile(r"^([\w\"']+)\s*=\s*")
_INTERPRETER = re.compile(
    r"\.|source|(ba|da|z|k|fi|t?c)?sh|tclsh|expect|[gm]?awk|perl|ruby|node|php|lua|python[\d.]*"
)
_OPERATORS = re.compile(r"[;|&<>()`'\"=]+")


def require_ownership(path: Path) -> None:
    """Check that only the user and root can change a file, or replace it in its directory; a missing one is success.

    As with ssh, the group may write if it is the private group of the user.

    Raises:
        ProviderError: another user can.
    """
    for each in dict.fromkeys((path, path.parent, path.resolve().parent)):
        try:
            status = each.stat()
        except OSError:  # reported by the program that reads it
            continue
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        reason = "which decides what fleet runs"
        if status.st_uid not in (0, os.geteuid()):
            raise ProviderError(
                ErrorKind.USAGE,
                f"the {kind} {each} belongs to another user (uid {status.st_uid})",
                cause=f"its owner can change {path}, {reason}",
                hint="read the file, and use a copy that belongs to you",
                next_steps=[("ls", "-ld", str(each))],
            )
        writable = stat.S_IWOTH | (0 if _is_private(status.st_gid) else stat.S_IWGRP)
        if status.st_mode & writable and not status.st_mode & stat.S_ISVTX:
            raise ProviderError(
                ErrorKind.USAGE,
                f"other users may write to the {kind} {each}",
                cause=f"they can change {path}, {reason}",
                hint="read the file before you use it: it may have been changed",
                next_steps=[("chmod", "go-w", str(each))],
            )


def _is_private(group: int) -> bool:
    """Return whether a group has the name of the user, and no other member."""
    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}


def describe_program(source: str, option: str, command: str) -> LocalProgram:
    """Return a program that an option of a file names.

    Raises:
        ProviderError: a file of the command cannot be read, or others can change it.
    """
    digest = hashlib.sha256("\0".join((source, fingerprint(f"{option} {command}"))).encode(errors="replace"))
    return LocalProgram(source, _shorten(f"{option} {command}"), digest.hexdigest())


def programs_of_ssh(source: str, options: Sequence[str]) -> list[LocalProgram]:
    """Return the programs that options of ssh run on this computer, and the configuration that does.

    Args:
        source: The file that has the options.
        options: Arguments of ssh.

    Raises:
        ProviderError: a file that they name cannot be read, or others can change it.
    """
    programs = []
    for option, value in itertools.pairwise(options):
        name, _, command = value.partition("=")
        if option == "-o" and name.lower() == "proxycommand" and command != "none":
            programs.append(describe_program(source, "ProxyCommand", command))
        elif option == "-F" and (lines := list(_running_lines(value))):
            made = describe_program(source, "-F", shlex.quote(value))
            programs.append(made._replace(text=_shorten(f"{made.text}: {'; '.join(lines)}")))
    return programs


def agree(options: Sequence[str], proxy: Sequence[str]) -> str:
    """Return the value of `Host.agreed` for the options of ssh in an inventory, and the proxy of the route."""
    is_named = any(word == "-F" or word.lower().startswith("proxycommand=") for word in options)
    return fingerprint(shlex.join(proxy)) if proxy and is_named else ""


def require_agreed(host: Host) -> None:
    """Check that the programs that run on this computer for a host are still those that the user accepted.

    Raises:
        ProviderError: a command or one of its files has changed.
    """
    command = shlex.join(host.proxy) or host.python
    if host.agreed and fingerprint(command) != host.agreed:
        raise ProviderError(
            ErrorKind.USAGE,
            f"what runs on this computer for {host.name} has changed since you accepted it: {_shorten(command)}",
            cause="a file of the command, or an SSH configuration, has changed",
            hint="fleet up shows it and asks you",
            next_steps=[("fleet", "up")],
        )


def fingerprint(command: str) -> str:
    """Return the hash of a command, of its programs and scripts, and of lines of SSH configurations that run some.

    Raises:
        ProviderError: a file cannot be read, or others can change an SSH configuration.
    """
    return hashlib.sha256("\0".join((command, *_contents(command, set()))).encode(errors="replace")).hexdigest()


def _contents(command: str, seen: set[str]) -> Iterator[str]:
    is_script = False  # an interpreter came before
    for before, word in itertools.pairwise(("", *_words(command))):
        path = _expand(os.path.expandvars(word))
        if before == "-F" and path not in seen:
            seen.add(path)
            for line in _running_lines(path):
                yield from (line, *_contents(line, seen))
        if before == "-F":
            continue
        file = path if is_script or "/" in path else shutil.which(path) or ""
        if _is_file(file) and not _is_below(file, _SYSTEM) and (is_script or _is_program(file)):
            status = Path(file).stat()
            yield _hash_file(file, status.st_mtime_ns, status.st_size)
            is_script = False
        is_script = word != "-c" and (is_script or bool(_INTERPRETER.fullmatch(Path(word).name)))


def _words(command: str) -> Iterator[str]:
    """Yield the words of a command for a shell, and the parts of those that are commands themselves."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for word in words:
        if word.startswith("-F"):
            yield from filter(None, ("-F", word[2:]))
            continue
        yield word
        if any(character.isspace() for character in word):
            yield from _words(word)
        elif len(parts := _OPERATORS.split(word)) > 1:
            yield from filter(None, parts)


def _expand(path: str) -> str:
    """Return `path` with the home directory for a ``~`` at its start; as in a shell, an unknown user stays."""
    with contextlib.suppress(RuntimeError):
        return str(Path(path).expanduser())
    return path


def _is_file(path: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(path).is_file()
    return False


def _is_program(path: str) -> bool:
    """Return whether a file is executable or a script; others, such as a log, may change whenever a program runs."""
    return os.access(path, os.X_OK) or _read(path).startswith(b"#!")


def _is_below(path: str, directories: Iterable[Path]) -> bool:
    return any(Path(path).resolve().is_relative_to(directory) for directory in directories)


@functools.lru_cache(maxsize=256)
def _hash_file(path: str, _changed_at: int, _size: int) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise ProviderError(
            ErrorKind.USAGE,
            f"{path} cannot be read: {error.strerror}",
            cause="it decides what runs on this computer",
            hint="make it readable, or remove it from the command",
            next_steps=[("ls", "-l", path)],
        ) from error


def _running_lines(path: str, outer: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of an SSH configuration, and of those that it includes, that can run a program.

    Raises:
        ProviderError: a file cannot be read, others can change it, or an Include line needs ssh to be understood.
    """
    file = _expand(path)
    if file == "none":
        return
    require_ownership(Path(file))
    if file in outer or not _is_file(file):  # ssh reports it
        return
    for line in map(str.strip, _read(file).decode(errors="replace").split("\n")):
        if line.startswith("#") or not _RUNNING.search(line.translate(_QUOTES)):
            continue
        yield line
        for pattern in _include_patterns(file, line):
            for included in sorted(glob.glob(pattern)):  # noqa: PTH207 - hidden files do not match, as in ssh
                if not _is_below(included, _OWN):
                    yield from _running_lines(included, (*outer, file))


def _include_patterns(path: str, line: str) -> list[str]:
    """Return the patterns of an Include line, as absolute paths; none of another line."""
    try:
        keyword, *patterns = shlex.split(_EQUALS.sub(r"\1 ", line, count=1))
    except ValueError:
        return []  # ssh refuses unbalanced quotes
    if keyword.lower() != "include":
        return []
    if any("%" in pattern or "$" in pattern for pattern in patterns):
        raise ProviderError(
            ErrorKind.USAGE,
            f"{path} has an Include line with a variable, which is not supported here: {_shorten(line)}",
            hint="write the paths of the files",
        )
    return [str(home_directory() / ".ssh" / _expand(pattern)) for pattern in patterns]


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text) - _SHOWN} more characters)"


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
