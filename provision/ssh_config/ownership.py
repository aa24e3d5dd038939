"""Check that only the user and the system can change a file that decides which programs run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from provision.provider import ErrorKind, ProviderError


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
