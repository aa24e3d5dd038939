"""Unpack the agent next to its archive and compile it, so that the next start is fast."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from typing import FrozenSet

from train.agent.files.disk import read_text, remove_tree

AGENTS_KEPT = 5


def unpack(archive: str, directory: str) -> None:
    """Unpack the modules of `archive` into `directory`, atomically.

    Raises:
        OSError: the disk is full.
    """
    import zipfile

    temporary = f"{directory}.{os.urandom(8).hex()}.new"  # hosts with separate process IDs may share it
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(temporary)
            names = packed.namelist()
        for name in names:
            path = os.path.join(temporary, name)
            py_compile.compile(path, dfile=os.path.join(directory, name), doraise=True)
            for written in (path, importlib.util.cache_from_source(path)):
                _sync(written)
        os.rename(temporary, directory)
        _prune(os.path.dirname(directory))
    except OSError:
        if not os.path.isdir(directory):  # or another start was faster
            raise
    finally:
        remove_tree(temporary)


def _prune(directory: str) -> None:
    """Remove all agents that no process runs but the newest; a running agent reads more of its modules later."""
    archives = [os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".pyz")]
    archives.sort(key=lambda path: os.stat(path).st_mtime, reverse=True)
    old = archives[AGENTS_KEPT:]
    running = _arguments() if old else frozenset()
    for archive in old:
        path = archive[: -len(".pyz")]
        if os.path.basename(path) not in running:
            remove_tree(path)
            remove_tree(archive)


def _arguments() -> FrozenSet[str]:
    """Return all arguments of all processes of this host; those of an agent, and of its forks, contain its hash."""
    commands = (read_text(f"/proc/{name}/cmdline") for name in os.listdir("/proc") if name.isdigit())
    return frozenset(argument for command in commands for argument in command.split("\0"))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
