"""Locations in inventory files, and the error for content that cannot be read or is not supported."""

from __future__ import annotations

import shutil
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from provision.provider import ErrorKind, ProviderError


@dataclass(frozen=True)
class Location:
    """A line of a file.

    Attributes:
        path: The file, as the user named it.
        line: Number of the line, from 1; 0: the file as a whole.
    """

    path: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)


@dataclass(eq=False, kw_only=True)
class InventoryError(ProviderError):
    """An inventory or a list of nodes is malformed, or has content that is not supported; nothing was started.

    Args:
        location: Location of the error; it begins the message.
    """

    kind: ErrorKind = field(default=ErrorKind.USAGE, init=False)
    location: InitVar[Location | None] = None

    def __post_init__(self, location: Location | None) -> None:
        if location is not None:
            self.message = f"{location}: {self.message}"


class AnsibleOnlyError(InventoryError):
    """Only Ansible can read an inventory."""


def only_for_ansible(message: str, path: Path, location: Location | None = None) -> AnsibleOnlyError:
    """Return the error that only Ansible can read an inventory, with the command that exports it."""
    return AnsibleOnlyError(
        message,
        location=location,
        cause="" if shutil.which("ansible-inventory") else "ansible-inventory, which reads it, is not installed",
        hint="export it to a file, and use this file",
        next_steps=[
            ("ansible-inventory", "-i", str(path), "--list", "--yaml", "--output", "hosts.yml"),
            ("fleet", "up", "--inventory", "hosts.yml"),
        ],
    )
