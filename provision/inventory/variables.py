"""Merges the variables of a host by precedence.

From the weakest to the strongest: ``all`` of the inventory, its groups from the outermost to the innermost, the file
``group_vars/all`` next to the inventory, ``group_vars/GROUP`` in the same order, the variables of the host in the
inventory, ``host_vars/HOST``. A file may end in .yml, .yaml or .json, or be a directory of such files, of which the
last one overrides the others.
"""

from __future__ import annotations

import os
from pathlib import Path

from provision.inventory.files import read_text
from provision.inventory.groups import Groups, Settings
from provision.inventory.yaml import read_variables

_SUFFIXES = ("", ".yml", ".yaml", ".json")


class Variables:
    """The variables of every host of an inventory.

    A file next to the inventory is read when a host that needs it is requested.

    Args:
        groups: Content of the inventory.
        directory: Directory of the inventory, with ``group_vars`` and ``host_vars``.
    """

    def __init__(self, groups: Groups, directory: Path) -> None:
        self._groups = groups
        self._order = list(groups.by_precedence())
        self._directory = directory
        self._read: dict[Path, Settings] = {}
        self._containing: dict[str, set[str]] = {host: set() for host in groups.hosts}
        for name in groups.groups:
            for host in groups.members(name):
                self._containing[host].add(name)

    def groups_of(self, host: str) -> tuple[str, ...]:
        """Return all groups that `host` is in, except ``all``, by name."""
        return tuple(sorted(self._containing[host] - {"all"}))

    def of(self, host: str) -> Settings:
        """Return the variables of `host`.

        Raises:
            InventoryError: a file with variables of it cannot be read.
        """
        mine = [group for group in self._order if group.name in self._containing[host]]
        settings: Settings = {}
        for group in mine:
            settings.update(group.settings)
        for group in mine:
            settings.update(self._of_files("group_vars", group.name))
        settings.update(self._groups.hosts[host])
        settings.update(self._of_files("host_vars", host))
        return settings

    def _of_files(self, kind: str, name: str) -> Settings:
        path = self._directory / kind / name
        if path not in self._read:
            self._read[path] = {}
            if "/" not in name and name not in ("", ".", ".."):
                for file in _files(path):
                    self._read[path].update(read_variables(read_text(file), file))
        return self._read[path]


def _files(path: Path) -> list[Path]:
    """Return the files of one name, the weakest first; a directory comes before a file with a suffix."""
    if path.is_dir():
        return sorted(
            Path(parent, name)
            for parent, _, names in os.walk(path)
            for name in names
            if not any(_is_ignored(part) for part in Path(parent, name).relative_to(path).parts)
            and Path(name).suffix in _SUFFIXES
        )
    named = (path.with_name(f"{path.name}{suffix}") for suffix in _SUFFIXES)
    return [file for file in named if file.is_file()][:1]


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")
