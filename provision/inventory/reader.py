"""Inventories: their hosts, the order of the hosts, and the route to each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from provision.bounds import CpuLimitError, limit_cpu
from provision.inventory.entry import Entry, entry
from provision.inventory.errors import InventoryError, Location, only_for_ansible
from provision.inventory.files import read_text
from provision.inventory.groups import Groups
from provision.inventory.ini import read_ini
from provision.inventory.limits import select
from provision.inventory.plain import is_plain, read_plain
from provision.inventory.variables import Variables
from provision.inventory.yaml import read_yaml

Kind = Literal["ini", "yaml", "plain"]

_READERS = {"yaml": read_yaml, "plain": read_plain, "ini": read_ini}
_READ_S = 20.0  # of CPU time
_YAML_SUFFIXES = (".yml", ".yaml", ".json")
_YAML_START = re.compile(r"""---|\{|["']?[\w.-]+["']?:(\s|$)""")


class Inventory:
    """The hosts of an inventory.

    Names and groups are read immediately. The variables of a host are evaluated when the host is requested, so that
    an unsupported host is an error only for users that need it.

    Args:
        path: The file.
        kind: Form of the file.
        content: Hosts and groups of the file.

    Attributes:
        names: Names of all hosts; their order is the order of indices.
        groups: Names of the hosts of each group, in their order.
    """

    def __init__(self, path: Path, kind: Kind, content: Groups) -> None:
        self.path = path
        self.kind: Kind = kind
        self.names: tuple[str, ...] = tuple(content.members("all"))
        self.groups: Mapping[str, tuple[str, ...]] = {name: tuple(content.members(name)) for name in content.groups}
        self._content = content
        self._variables = Variables(content, path.parent)

    def location(self, name: str) -> Location:
        """Return the location at which the host `name` is first named."""
        return self._content.locations[name]

    @property
    def hosts(self) -> tuple[Entry, ...]:
        """Return all hosts, in their order.

        Raises:
            InventoryError: there are no hosts, or the route to a host is not supported.
        """
        return self.select("")

    def select(self, limit: str) -> tuple[Entry, ...]:
        """Return the hosts that a limit names, in the order of the inventory.

        Args:
            limit: Patterns as in Ansible's ``--limit``, ``gpu:!gpu3`` or ``lab[0:3]``; empty: all hosts.

        Raises:
            InventoryError: it names no hosts, or the route to a host is not supported.
        """
        return tuple(
            entry(name, self._variables.of(name), self._variables.groups_of(name))
            for name in select(self._content, limit)
        )


def read_inventory(path: Path) -> Inventory:
    """Read an inventory: Ansible's INI or YAML form, or a plain list of hosts.

    The file's suffix and content determine the form. Variables in ``group_vars`` and ``host_vars`` next to it are
    read.

    Raises:
        InventoryError: it cannot be read, is malformed, or is something that only Ansible can run.
    """
    if path.is_dir():
        raise only_for_ansible(f"{path} is a directory; an inventory must be a file", path)
    text = read_text(path)
    if text.startswith("#!") and os.access(path, os.X_OK):
        raise only_for_ansible(f"{path} is executable; dynamic inventories are not supported", path)
    try:
        with limit_cpu(_READ_S):
            kind = _kind(text, path)
            return Inventory(path, kind, _READERS[kind](text, path))
    except CpuLimitError as error:
        raise InventoryError(f"cannot be read: {error}", location=Location(path)) from None


def _kind(text: str, path: Path) -> Kind:
    if path.suffix.lower() == ".toml":
        raise only_for_ansible(f"{path}: inventories in TOML are not supported", path)
    if path.suffix.lower() in _YAML_SUFFIXES or (not path.suffix and _looks_like_yaml(text)):
        return "yaml"
    return "plain" if is_plain(text) else "ini"


def _looks_like_yaml(text: str) -> bool:
    """Return True if the first line that is not empty or a comment begins a mapping."""
    lines = (line.strip() for line in text.split("\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return _YAML_START.match(first) is not None
