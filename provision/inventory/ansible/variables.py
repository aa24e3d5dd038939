"""Merges the variables of a host by precedence.

From the weakest to the strongest: ``all`` of the inventory, its groups from the outermost to the innermost, the file
``group_vars/all`` next to the inventory, ``group_vars/GROUP`` in the same order, the variables of the host in the
inventory, ``host_vars/HOST``. A file may end in .yml, .yaml or .json, or be a directory of such files, of which the
last one overrides the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from provision.inventory.ansible.files import read_text
from provision.inventory.ansible.groups import Groups, Settings
from provision.inventory.ansible.yaml_form import settings
from provision.inventory.ansible.yaml_text import Table, parse_yaml
from provision.inventory.errors import InventoryError, Location

_SUFFIXES = ("", ".yml", ".yaml", ".json")


class Variables:
    """The variables of every host of an inventory.

    The files next to the inventory are read once, in the constructor. An error in one of them is raised when a host
    that needs it is requested.

    Args:
        groups: Content of the inventory.
        directory: Directory of the inventory, with ``group_vars`` and ``host_vars``.
    """

    def __init__(self, groups: Groups, directory: Path) -> None:
        self._groups = groups
        self._order = list(groups.by_precedence())
        self._of_group = _Directory(directory / "group_vars", groups.groups)
        self._of_host = _Directory(directory / "host_vars", groups.hosts)
        self._containing = _containing(groups)

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
            settings.update(self._of_group.of(group.name))
        settings.update(self._groups.hosts[host])
        settings.update(self._of_host.of(host))
        return settings


def _containing(groups: Groups) -> dict[str, set[str]]:
    """Return the groups that each host is in, directly or not."""
    containing: dict[str, set[str]] = {host: set() for host in groups.hosts}
    for name in groups.groups:
        for host in groups.members(name):
            containing[host].add(name)
    return containing


class _Directory:
    """A directory with a file of variables for each name.

    Args:
        path: The directory.
        names: Names to read variables of.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._variables: dict[str, Settings | InventoryError] = {}
        if path.is_dir():
            for name in names:
                if "/" not in name and name not in ("", ".", ".."):
                    self._variables[name] = _settings_or_error(path, name)

    def of(self, name: str) -> Settings:
        """Return the variables of a name.

        Raises:
            InventoryError: they cannot be read.
        """
        settings = self._variables.get(name, {})
        if isinstance(settings, InventoryError):
            raise settings
        return settings


def _settings_or_error(directory: Path, name: str) -> Settings | InventoryError:
    merged: Settings = {}
    try:
        for path in _files(directory, name):
            merged.update(_settings(path))
    except InventoryError as error:
        return error
    return merged


def _files(directory: Path, name: str) -> list[Path]:
    """Return the files of one name, the weakest first; a directory comes before a file with a suffix."""
    for suffix in _SUFFIXES:
        path = directory / f"{name}{suffix}"
        if path.is_dir() and not suffix:
            return _descendants(path)
        if path.is_file():
            return [path]
    return []


def _descendants(directory: Path) -> list[Path]:
    paths = []
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not _is_left_out(name)]
        paths += [Path(parent, name) for name in files if not _is_left_out(name)]
    return sorted(path for path in paths if path.suffix in _SUFFIXES)


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")


def _settings(path: Path) -> Settings:
    data = parse_yaml(read_text(path), Location(path))
    if data is None:
        return {}
    if not isinstance(data, Table):
        raise InventoryError(
            "a file of variables must be a mapping",
            location=Location(path),
            hint="write one variable per line: NAME: VALUE",
        )
    return settings(data, path)
