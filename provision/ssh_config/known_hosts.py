"""Host keys from the user's own known_hosts files, as OpenSSH reads them (hashed names included)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.ssh_config.routes import run_openssh

# The first known type is pinned; a host presents this type when the client requests it.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


@dataclass(frozen=True)
class KnownKeys:
    """Entries of known_hosts files for a host.

    Attributes:
        keys: Keys of the host, ``ssh-ed25519 AAAA…``, the one to pin first; empty: unknown.
        authority: File that names a certificate authority for it; empty: none.
        revoked: Keys that are never accepted for the host.
    """

    keys: tuple[str, ...] = ()
    authority: str = ""
    revoked: tuple[str, ...] = ()


def known_keys(name: str, files: Sequence[str]) -> KnownKeys:
    """Return the entries of `files` for `name`; its keys are those of the first file that has any.

    Raises:
        SshConfigError: ssh-keygen is missing, or does not read a file.
    """
    lines = [(file, *entry) for file in files if Path(file).is_file() for entry in _matching_lines(name, file)]
    revoked = tuple(key for _, marker, key in lines if marker == "@revoked")
    usable = [
        (file, key)
        for file, marker, key in lines
        if not marker and key not in revoked and key.split()[0] in _PREFERRED
    ]
    keys = [key for file, key in usable if file == usable[0][0]]
    return KnownKeys(
        keys=tuple(sorted(keys, key=lambda key: _PREFERRED.index(key.split()[0]))),
        authority=next((file for file, marker, _ in lines if marker == "@cert-authority"), ""),
        revoked=revoked,
    )


def _matching_lines(name: str, file: str) -> Iterator[tuple[str, str]]:
    """Yield the marker and the key of each line of `file` for `name`."""
    for line in run_openssh("ssh-keygen", "-F", name, "-f", file).stdout.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) >= 3:
            yield marker, f"{words[1]} {words[2]}"
