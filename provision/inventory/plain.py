"""Plain inventories: a list of hosts, one per line, ``[user@]host[:port]``.

Ranges and comments are those of the INI form. A host that is listed twice counts once, as in the list of a batch
system.
"""

from __future__ import annotations

import re
from pathlib import Path

from provision.inventory.errors import InventoryError, Location
from provision.inventory.groups import Groups, Setting

_BRACKETED = re.compile(r"\[[^\]]*\].+")


def is_plain(text: str) -> bool:
    """Return True if `text` is a plain list: no part of it sets a variable or begins a section."""
    return all("=" not in word and (word[0] != "[" or _BRACKETED.fullmatch(word)) for _, word in _hosts(text))


def read_plain(text: str, path: Path) -> Groups:
    """Return the hosts of a plain list.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    groups = Groups(Location(path))
    for number, word in _hosts(text):
        location = Location(path, number)
        if len(word.split()) > 1 or "," in word:
            raise InventoryError(
                f"{word!r} contains several hosts",
                location=location,
                hint="write one host per line: NAME, NAME:PORT, or USER@NAME",
            )
        user, at, host = word.rpartition("@")
        if at and not user:
            raise InventoryError(f"no user before the @ in {word!r}", location=location)
        settings = [("ansible_user", Setting(user, location))] if user else []
        groups.add_hosts(host, "ungrouped", location, settings)
    groups.close()
    return groups


def _hosts(text: str) -> list[tuple[int, str]]:
    """Return the number and content of each line that is neither empty nor a comment, without comments."""
    stripped = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, word) for number, word in stripped if word and not word.startswith(";")]
