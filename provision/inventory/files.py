"""The text files of inventories, and the error for content that is malformed or not supported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.programs import require_ownership

SIZE_MAX = 16 * 2**20
"""Bytes; a larger file is not an inventory."""


class InventoryError(ProviderError):
    """An inventory or a list of nodes is malformed, or has content that is not supported; nothing was started.

    Args:
        message: Description of the error.
        location: Its file and line, which begin the message.
        rest: Other fields of `ProviderError`.
    """

    def __init__(self, message: str, location: str = "", **rest: Any) -> None:
        super().__init__(ErrorKind.USAGE, f"{location}: {message}" if location else message, **rest)


class AnsibleOnlyError(InventoryError):
    """Only Ansible can read an inventory."""


def only_for_ansible(message: str, path: Path, location: str = "") -> AnsibleOnlyError:
    """Return the error that only Ansible can read an inventory, with the command that exports it."""
    return AnsibleOnlyError(
        message,
        location,
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
        raise InventoryError(f"larger than {SIZE_MAX // 2**20} MiB", str(path))
    if content.startswith(b"$ANSIBLE_VAULT"):
        hint = "keep the variables that decide how hosts are reached in an unencrypted file"
        raise InventoryError("encrypted by ansible-vault", str(path), hint=hint)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InventoryError("not UTF-8 text", f"{path}:{line}") from None
    if "\0" in text:
        raise InventoryError("not a text file: it contains a zero byte", str(path))
    return text
