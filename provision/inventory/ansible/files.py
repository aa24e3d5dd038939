"""Reads the text files of inventories."""

from __future__ import annotations

from pathlib import Path

from provision.inventory.errors import InventoryError, Place

SIZE_MAX = 16 * 2**20
"""Bytes; a larger file is not an inventory."""


def read_text(path: Path) -> str:
    """Return the content of a text file.

    Raises:
        InventoryError: it cannot be read, is not text, or is encrypted by ansible-vault.
    """
    place = Place(path)
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise InventoryError(
            f"{path} cannot be read: {error.strerror}", hint="name an inventory file that exists"
        ) from None
    if len(content) > SIZE_MAX:
        raise InventoryError(f"this is larger than {SIZE_MAX // 2**20} MiB, too large for an inventory", place=place)
    if content.startswith(b"$ANSIBLE_VAULT"):
        raise InventoryError(
            "this file is sealed by ansible-vault, and only Ansible can open it",
            place=place,
            hint="keep what tells how hosts are reached in a file of its own, unsealed",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InventoryError("this is not UTF-8 text", place=Place(path, line)) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InventoryError("this is not text: it holds a zero byte", place=Place(path, line))
    return text
