"""Reads the text files of inventories."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from provision.inventory.errors import InventoryError, Location
from provision.ssh_config.ownership import require_ownership

SIZE_MAX = 16 * 2**20
"""Bytes; a larger file is not an inventory."""


def _unreadable(path: Path, error: OSError) -> InventoryError:
    """Return the error that a file cannot be read; it suggests a file of a similar name."""
    directory = next(parent for parent in path.parents if parent.is_dir())
    try:
        files = [entry.name for entry in directory.iterdir() if entry.is_file() and entry.name != path.name]
    except OSError:
        files = []
    near = get_close_matches(path.name, files, n=1) if directory == path.parent else []
    return InventoryError(
        f"{path} cannot be read: {error.strerror}",
        hint=f"did you mean {directory / near[0]}?" if near else "give an existing inventory file",
        again={"--inventory": str(directory / near[0])} if near else None,
        next_steps=[("ls", "-l", str(directory))],
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
        raise _unreadable(path, error) from None
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
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InventoryError("not a text file: it contains a zero byte", location=Location(path, line))
    return text
