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
from pathlib import Path
from typing import TYPE_CHECKING

from provision.provider import ErrorKind, ProviderError

if TYPE_CHECKING:
    import psutil

MARK = "FLEET_INSTANCE"
GRACE_S = 2.0
END_TIMEOUT_S = 15.0
_POLL_S = 0.03


def log_name(instance_id: str) -> str:
    """Return the name of the log to which an instance's sshd writes standard error."""
    return f"sshd-{instance_id}.log"


def listens(pid: int, instance_id: str) -> bool:
    """Return True if `pid` is the listening sshd of this instance, not a later process with the same number."""
    import psutil

    try:
        return instance_id in _as_listener(psutil.Process(pid), {instance_id})
    except (psutil.Error, OSError, ValueError):
        return False


def listeners(root: Path) -> dict[Path, tuple[int, str]]:
    """Return the listening sshds of this user whose configuration is in a directory below `root`.

    Returns:
        Process and instance of each, by that directory.
    """
    import psutil

    pattern = re.compile(rf" -f ({re.escape(str(root))}/[^/]+)/sshd_config -o SetEnv={MARK}=([0-9a-f]+) ")
    listening = {}
    for process in psutil.process_iter():
        try:
            if process.name().startswith("sshd") and process.uids().real == os.getuid():
                words = pattern.search(" ".join(process.cmdline()) + " ")
                if words:
                    listening[Path(words[1])] = process.pid, words[2]
        except (psutil.Error, OSError):
            continue  # it has ended, or another user runs it
    return listening


def end(ids: Collection[str], *, listeners_alone: bool = False) -> None:
    """End every process of the instances `ids`: SIGTERM, listeners first, then SIGKILL, until none is left.

    Args:
        ids: IDs of the instances.
        listeners_alone: Keep the processes that were started through SSH.

    Raises:
        ProviderError: processes are left after END_TIMEOUT_S.
    """
    started = time.monotonic()
    asked: set[psutil.Process] = set()
    while left := [entry for entry in _listeners_first(ids) if entry[0] or not listeners_alone]:
        now = time.monotonic() - started
        if now > END_TIMEOUT_S:
            raise ProviderError(
                ErrorKind.UNREACHABLE,
                f"processes did not exit within {END_TIMEOUT_S:.0f} s",
                cause="still running: " + ", ".join(str(process.pid) for _, process in left),
                hint="repeat the command when they have exited",
            )
        for _, process in left:
            if now > GRACE_S:
                _send(process, signal.SIGKILL)
            elif process not in asked:
                _send(process, signal.SIGTERM)
                asked.add(process)
        time.sleep(_POLL_S)
        for process in asked:
            reap(process.pid)


def _listeners_first(ids: Collection[str]) -> list[tuple[bool, psutil.Process]]:
    return sorted(_belonging(ids), key=lambda entry: not entry[0])


def reap(pid: int) -> None:
    """Reap `pid` if it is a child of this program that has ended."""
    if pid > 0:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return


def _belonging(ids: Collection[str]) -> Iterator[tuple[bool, psutil.Process]]:
    """Yield the processes of the instances `ids`, and True for a listening sshd; never this program."""
    import psutil

    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if _as_listener(process, ids):
                yield True, process
            elif process.environ().get(MARK) in ids or _as_session(process, ids):
                yield False, process
        except (psutil.Error, OSError):
            continue  # it has ended, or another user runs it


def _as_listener(process: psutil.Process, ids: Collection[str]) -> set[str]:
    if not process.name().startswith("sshd"):
        return set()
    words = " ".join(process.cmdline())
    return {each for each in ids if f"{MARK}={each} " in f"{words} "}


def _as_session(process: psutil.Process, ids: Collection[str]) -> bool:
    if not process.name().startswith("sshd"):
        return False
    standard_error = Path(f"/proc/{process.pid}/fd/2").readlink().name
    return any(standard_error.removesuffix(" (deleted)") == log_name(each) for each in ids)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    import psutil

    try:
        process.send_signal(number)
    except psutil.Error:
        return  # it has ended
