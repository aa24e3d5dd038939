"""Finds and ends the processes of local instances.

The mark is ``FLEET_INSTANCE=<id>``. Processes that are started through SSH have it in their environment. The
environment of an sshd cannot be read, because sshd overwrites it with its title: the listening sshd has the mark in
its arguments, and the sshds of connections have the log with the id in its name as standard error.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from provision.provider import ErrorKind, ProviderError

MARK = "FLEET_INSTANCE"
GRACE_S = 2.0
END_TIMEOUT_S = 15.0
_POLL_S = 0.03


def log_name(instance_id: str) -> str:
    """Return the name of the log to which an instance's sshd writes standard error."""
    return f"sshd-{instance_id}.log"


def listens(pid: int, instance_id: str) -> bool:
    """Return True if `pid` is the listening sshd of this instance, not a later process with the same number."""
    try:
        return _is_sshd(pid) and _is_listener(pid, {instance_id})
    except OSError:
        return False


def listeners(root: Path) -> dict[Path, tuple[int, str]]:
    """Return the listening sshds of this user whose configuration is in a directory below `root`.

    Returns:
        Process and instance of each, by that directory.
    """
    pattern = re.compile(rf" -f ({re.escape(str(root))}/[^/]+)/sshd_config -o SetEnv={MARK}=([0-9a-f]+) ")
    listening = {}
    for pid in _others():
        with suppress(OSError):  # it has ended, or another user runs it
            if _is_sshd(pid) and (words := pattern.search(_arguments(pid))) and _user(pid) == os.getuid():
                listening[Path(words[1])] = pid, words[2]
    return listening


def end(ids: Collection[str], *, only_listeners: bool = False) -> None:
    """End every process of the instances `ids`: SIGTERM, listeners first, then SIGKILL, until none is left.

    Args:
        ids: IDs of the instances.
        only_listeners: Keep the processes that were started through SSH.

    Raises:
        ProviderError: processes are left after END_TIMEOUT_S.
    """
    started = time.monotonic()
    terminated: set[int] = set()
    while left := [entry for entry in _listeners_first(ids) if entry[0] or not only_listeners]:
        now = time.monotonic() - started
        if now > END_TIMEOUT_S:
            raise ProviderError(
                ErrorKind.UNREACHABLE,
                f"processes did not exit within {END_TIMEOUT_S:.0f} s",
                cause="still running: " + ", ".join(str(pid) for _, pid in left),
                hint="repeat the command when they have exited",
            )
        for _, pid in left:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                if now > GRACE_S:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in terminated:
                    os.kill(pid, signal.SIGTERM)
                    terminated.add(pid)
        time.sleep(_POLL_S)
        for pid in terminated:
            reap(pid)


def _listeners_first(ids: Collection[str]) -> list[tuple[bool, int]]:
    return sorted(_belonging(ids), key=lambda entry: not entry[0])


def reap(pid: int) -> None:
    """Reap `pid` if it is a child of this program that has ended."""
    if pid > 0:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return


def _belonging(ids: Collection[str]) -> Iterator[tuple[bool, int]]:
    """Yield the processes of the instances `ids`, and True for a listening sshd; never this program."""
    marks = {f"{MARK}={each}".encode() for each in ids}
    for pid in _others():
        with suppress(OSError):  # it has ended, or another user runs it
            is_sshd = _is_sshd(pid)
            if is_sshd and _is_listener(pid, ids):
                yield True, pid
            elif not marks.isdisjoint(_read(pid, "environ").split(b"\0")) or (is_sshd and _is_session(pid, ids)):
                yield False, pid


def _others() -> Iterator[int]:
    """Yield all processes but this program."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return (pid for pid in numbers if pid != os.getpid())


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", 0) as file:  # noqa: PTH123 - pathlib takes longer than the kernel
        return file.read()


def _arguments(pid: int) -> str:
    """Return the arguments of a process, each followed by a space."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "surrogateescape") + " "


def _user(pid: int) -> int:
    return int(_read(pid, "status").split(b"\nUid:", 1)[1].split(maxsplit=1)[0])


def _is_sshd(pid: int) -> bool:
    return _read(pid, "comm").startswith(b"sshd")


def _is_listener(pid: int, ids: Collection[str]) -> bool:
    words = _arguments(pid)
    return any(f"{MARK}={each} " in words for each in ids)


def _is_session(pid: int, ids: Collection[str]) -> bool:
    standard_error = os.readlink(f"/proc/{pid}/fd/2").rpartition("/")[2]  # noqa: PTH115 - as in _read
    return standard_error.removesuffix(" (deleted)") in {log_name(each) for each in ids}
