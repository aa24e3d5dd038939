"""The text files of inventories, locations in them, and the error for content that is not supported."""

from __future__ import annotations

import shutil
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.programs import require_ownership

SIZE_MAX = 16 * 2**20
"""Bytes; a larger file is not an inventory."""


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


def read_text(path: Path) -> str:
    """Return the content of a text file.

    Raises:
        ProviderError: others can change it, it cannot be read, is not text, or is encrypted by ansible-vault.
    """
    location = Location(path)
    require_ownership(path)
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        directory = next(parent for parent in path.parents if parent.is_dir())
        raise InventoryError(
            f"{path} cannot be read: {error.strerror}",
            hint="give an existing inventory file",
            next_steps=[("ls", "-l", str(directory))],
        ) from None
    if len(content) > SIZE_MAX:
        raise InventoryError(f"larger than {SIZE_MAX // 2**20} MiB", location=location)
    if content.startswith(b"$ANSIBLE_VAULT"):
        raise InventoryError(
            "encrypted by ansible-vault",
            location=location,
            hint="keep the variables that decide how hosts are reached in an unencrypted file",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InventoryError("not UTF-8 text", location=Location(path, line)) from None
    if "\0" in text:
        raise InventoryError("not a text file: it contains a zero byte", location=location)
    return text
