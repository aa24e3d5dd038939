"""Which value of a variable counts for a host.

From the weakest to the strongest: ``all`` of the inventory, its groups from the outermost to the innermost, the file
``group_vars/all`` beside the inventory, ``group_vars/GROUP`` in the same order, what the inventory says of the host,
``host_vars/HOST``. A file may end in .yml, .yaml or .json, or be a directory of such files, of which the last one
wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from provision.inventory.ansible.files import read_text
from provision.inventory.ansible.groups import Groups, Settings
from provision.inventory.ansible.yaml_form import settings
from provision.inventory.ansible.yaml_text import Table, parse_yaml
from provision.inventory.errors import InventoryError, Place

_SUFFIXES = ("", ".yml", ".yaml", ".json")


class Variables:
    """The variables of every host of an inventory.

    The files beside the inventory are read once, at once; what is wrong with one of them is told when a host is asked
    for that needs it.

    Args:
        groups: What the inventory says.
        directory: Where it lies, with ``group_vars`` and ``host_vars``.
    """

    def __init__(self, groups: Groups, directory: Path) -> None:
        self._groups = groups
        self._order = list(groups.by_precedence())
        self._of_group = _Directory(directory / "group_vars", groups.groups)
        self._of_host = _Directory(directory / "host_vars", groups.hosts)
        self._containing = _containing(groups)

    def groups_of(self, host: str) -> tuple[str, ...]:
        """All groups that `host` is in, but ``all``, by name."""
        return tuple(sorted(self._containing[host] - {"all"}))

    def of(self, host: str) -> Settings:
        """The variables of `host`.

        Raises:
            InventoryError: a file with variables of it cannot be read.
        """
        mine = [group for group in self._order if group.name in self._containing[host]]
        found: Settings = {}
        for group in mine:
            found.update(group.settings)
        for group in mine:
            found.update(self._of_group.of(group.name))
        found.update(self._groups.hosts[host])
        found.update(self._of_host.of(host))
        return found


def _containing(groups: Groups) -> dict[str, set[str]]:
    """The groups that each host is in, directly or not."""
    found: dict[str, set[str]] = {host: set() for host in groups.hosts}
    for name in groups.groups:
        for host in groups.members(name):
            found[host].add(name)
    return found


class _Directory:
    """A directory with a file of variables for each of some names.

    Args:
        path: The directory.
        names: Names that matter.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._found: dict[str, Settings | InventoryError] = {}
        if path.is_dir():
            for name in names:
                if "/" not in name and name not in ("", ".", ".."):
                    self._found[name] = _settings_or_error(path, name)

    def of(self, name: str) -> Settings:
        """The variables of a name.

        Raises:
            InventoryError: they cannot be read.
        """
        found = self._found.get(name, {})
        if isinstance(found, InventoryError):
            raise found
        return found


def _settings_or_error(directory: Path, name: str) -> Settings | InventoryError:
    found: Settings = {}
    try:
        for path in _files(directory, name):
            found.update(_settings(path))
    except InventoryError as error:
        return error
    return found


def _files(directory: Path, name: str) -> list[Path]:
    """The files of one name, the weakest first; a directory comes before a file with a suffix."""
    for suffix in _SUFFIXES:
        path = directory / f"{name}{suffix}"
        if path.is_dir() and not suffix:
            return _below(path)
        if path.is_file():
            return [path]
    return []


def _below(directory: Path) -> list[Path]:
    found = []
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not _is_left_out(name)]
        found += [Path(parent, name) for name in files if not _is_left_out(name)]
    return sorted(path for path in found if path.suffix in _SUFFIXES)


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")


def _settings(path: Path) -> Settings:
    data = parse_yaml(read_text(path), Place(path))
    if data is None:
        return {}
    if not isinstance(data, Table):
        raise InventoryError(
            "a file of variables must be names with values, and this is not",
            place=Place(path),
            hint="write one variable a line, as NAME: VALUE",
        )
    return settings(data, path)
