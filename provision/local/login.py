"""Checks that sshd accepts logins of the user that runs this program."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from provision.provider import ErrorKind, ProviderError

SHADOW = Path("/etc/shadow")


def current_user() -> pwd.struct_passwd:
    """Return the account that runs this program.

    Raises:
        ProviderError: the system has no entry for it.
    """
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        raise ProviderError(
            ErrorKind.MISSING,
            f"user ID {os.geteuid()} has no entry in the user database of this system",
            cause="sshd requires a user with a login name",
            hint="run fleet as a user with a login name",
        ) from None


def check_login() -> str:
    """Return the name of the account that runs this program, if it can log in.

    Raises:
        ProviderError: sshd would reject the login.
    """
    entry = current_user()
    shell = entry.pw_shell or "/bin/sh"
    if Path(shell).name in ("nologin", "false") or not os.access(shell, os.X_OK):
        raise ProviderError(
            ErrorKind.MISSING,
            f"user {entry.pw_name} cannot log in on this computer: the login shell is {shell}",
            hint="run fleet as another user, or change the shell",
            next_steps=[("chsh", "-s", "/bin/sh", entry.pw_name)],
        )
    if _locked(entry.pw_name):
        raise ProviderError(
            ErrorKind.MISSING,
            f"user {entry.pw_name} cannot log in on this computer: the account is locked",
            hint="run fleet as an ordinary user, or unlock this one",
            next_steps=[("usermod", "-p", "*", entry.pw_name)],
        )
    return entry.pw_name


def _locked(name: str) -> bool:
    """Return True if the password entry starts with ``!``: an sshd that can read it refuses even keys."""
    try:
        lines = SHADOW.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False  # sshd has the same permissions and cannot read it either
    return any(line.startswith(f"{name}:!") for line in lines)
