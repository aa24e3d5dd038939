"""Inventories in YAML: groups with ``hosts``, ``children`` and ``vars``, nested to any depth."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from provision.inventory.ansible.groups import Groups, Setting
from provision.inventory.ansible.ranges import expand_host
from provision.inventory.ansible.yaml_text import Table, parse_yaml
from provision.inventory.errors import InventoryError, Place

_SHAPE = "a group has hosts:, children: and vars:, and below each of them one name per line, ending in a colon"


def read_yaml(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in YAML, or in JSON of the same shape.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    data = parse_yaml(text, Place(path))
    if not isinstance(data, Table):
        raise InventoryError(
            "an inventory in YAML must be groups by name, and this is not", place=Place(path), hint=_SHAPE
        )
    if "plugin" in data:
        raise InventoryError(
            f"this sets up the dynamic inventory plugin {data['plugin']!r}, which only Ansible can run",
            place=Place(path, data.lines["plugin"]),
            hint="write what it yields, and name that file: --inventory hosts.yml",
            next_step=f"ansible-inventory -i {shlex.quote(str(path))} --list --yaml --output hosts.yml",
        )
    if "_meta" in data:
        raise InventoryError(
            "this is what an inventory script prints, not an inventory",
            place=Place(path, data.lines["_meta"]),
            hint="write it in YAML: ansible-inventory -i SCRIPT --list --yaml --output hosts.yml",
        )
    form = _YamlForm(path)
    for name, body in data.items():
        form.group(name, body, data.lines[name])
    form.groups.close()
    return form.groups


class _YamlForm:
    """Walks the groups of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups = Groups(Place(path))
        # A body can occur in several places as an alias, and each of these in several more.
        self._read: set[tuple[str, int]] = set()

    def group(self, name: Any, body: Any, line: int) -> None:
        """Read the group `name` and its content."""
        place = Place(self.path, line)
        if not isinstance(name, str) or not name:
            raise InventoryError(f"{name!r} is no name of a group", place=place, hint="put quotes around it")
        self.groups.group(name, place)
        if isinstance(body, Table) and (name, id(body)) in self._read:
            return
        self._read.add((name, id(body)))
        table = self._table(body, f"the group {name!r}", line)
        for section, content in table.items():
            line = table.lines[section]
            owner = f"{section} of the group {name!r}"
            if section == "vars":
                self._group_variables(name, self._table(content, owner, line))
            elif section == "children":
                self._children(name, self._table(content, owner, line, one_name=True))
            elif section == "hosts":
                self._hosts(name, self._table(content, owner, line, one_name=True))
            else:
                raise InventoryError(
                    f"{section!r} in the group {name!r} is none of hosts, children and vars",
                    place=Place(self.path, line),
                    hint=_SHAPE,
                )

    def _group_variables(self, name: str, table: Table) -> None:
        for variable, setting in settings(table, self.path).items():
            self.groups.set_group(name, variable, setting)

    def _children(self, parent: str, table: Table) -> None:
        for child, body in table.items():
            line = table.lines[child]
            place = Place(self.path, line)
            if isinstance(child, str):
                self.groups.group(child, place)
                self.groups.add_child(parent, child, place)
            self.group(child, body, line)

    def _hosts(self, group: str, table: Table) -> None:
        for word, body in table.items():
            line = table.lines[word]
            place = Place(self.path, line)
            if not isinstance(word, str):
                raise InventoryError(f"{word!r} is no name of a host", place=place, hint="put quotes around it")
            try:
                names, port = expand_host(word)
            except ValueError as error:
                raise InventoryError(str(error), place=place) from None
            variables = settings(self._table(body, f"the host {word!r}", line), self.path)
            for name in names:
                self.groups.add_host(name, group, place)
                if port:
                    self.groups.set_host(name, "ansible_port", Setting(port, place))
                for variable, setting in variables.items():
                    self.groups.set_host(name, variable, setting)

    def _table(self, content: Any, owner: str, line: int, *, one_name: bool = False) -> Table:
        """Return the mapping under a key; if `one_name` may be given alone, it counts as a mapping of one key."""
        if isinstance(content, Table):
            return content
        table = Table()
        if one_name and isinstance(content, str):
            table[content] = None
            table.lines[content] = line
        elif content is not None:
            kind = "a list" if isinstance(content, list) else "a single value"
            raise InventoryError(
                f"{owner} must be followed by names with a colon each, and this is {kind}",
                place=Place(self.path, line),
                hint=_SHAPE,
            )
        return table


def settings(table: Table, path: Path) -> dict[str, Setting]:
    """Return the variables of a mapping, by name."""
    return {str(name): Setting(value, Place(path, table.lines[name])) for name, value in table.items()}
