"""Directories that only their owner can enter, and records in them."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import time
from pathlib import Path

from provision.provider import ErrorKind, ProviderError

REMOVE_TIMEOUT_S = 10.0
_POLL_S = 0.05


def home_directory() -> Path:
    """Return the user's home directory as OpenSSH determines it: not from the variable HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each accessible only to its owner, with any umask.

    `Path.mkdir(mode, parents=True)` applies the mode to the last directory only.

    Raises:
        OSError: a directory cannot be created.
    """
    missing = []
    for each in (path, *path.parents):
        if each.exists():
            break
        missing.append(each)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def write_record(path: Path, content: object) -> None:
    """Write a JSON file to disk, atomically, over the existing one."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def delete_record(path: Path) -> None:
    """Delete a file that `write_record` wrote, and what it left after a crash; a missing file is success."""
    for left_by_a_crash in path.parent.glob(f"{path.name}.*"):
        left_by_a_crash.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def remove_directory(directory: Path) -> None:
    """Delete `directory`, even while files are still written to it.

    Raises:
        ProviderError: the directory still exists after REMOVE_TIMEOUT_S.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while os.path.lexists(directory):
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ProviderError(
                    ErrorKind.UNREACHABLE,
                    f"{directory} could not be deleted",
                    cause=str(error),
                    hint="delete it manually, then repeat the command",
                ) from error
            for inner, _, _ in os.walk(directory):
                with contextlib.suppress(OSError):
                    Path(inner).chmod(0o700)
            time.sleep(_POLL_S)
