"""Host keys from the user's own known_hosts files, as OpenSSH reads them (hashed names included)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.static.ways import ASK_TIMEOUT_S, WayError

# The first type that is known is pinned; a host shows that one when it is asked for it.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def known_key(name: str, files: Sequence[str]) -> str:
    """The host key that the first of `files` which knows `name` has for it, ``ssh-ed25519 AAAA…``; empty: none.

    Raises:
        WayError: a file says that a key of the host is revoked, or ssh-keygen is missing.
    """
    for file in files:
        keys = list(_keys(name, file)) if Path(file).is_file() else []
        for kind in _PREFERRED:
            for key in keys:
                if key.startswith(f"{kind} "):
                    return key
    return ""


def _keys(name: str, file: str) -> Iterator[str]:
    for line in _found(name, file).splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "@revoked":
            raise WayError(
                f"a host key of {name} is revoked", cause=f"{file} says so", next_step="ask who runs the host"
            )
        # A certificate authority's key is none of the host itself.
        if not words[0].startswith("@") and len(words) >= 3:
            yield f"{words[1]} {words[2]}"


def _found(name: str, file: str) -> str:
    """What ``ssh-keygen -F`` prints: the lines of `file` that are about `name`."""
    try:
        done = subprocess.run(
            ["ssh-keygen", "-F", name, "-f", file],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ASK_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise WayError(
            "ssh-keygen is not installed on this computer", next_step="apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise WayError(f"ssh-keygen did not read {file} within {ASK_TIMEOUT_S:g} s") from None
    return done.stdout
