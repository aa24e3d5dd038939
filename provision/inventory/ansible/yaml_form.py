"""Inventories in YAML: groups with ``hosts``, ``children`` and ``vars``, nested to any depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision.inventory.ansible.groups import Groups, Setting
from provision.inventory.ansible.yaml_text import Table, parse_yaml
from provision.inventory.errors import InventoryError, Location, only_for_ansible

_SHAPE = "a group has the keys hosts, children, and vars; each contains one name per line, followed by a colon"


def read_yaml(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in YAML, or in JSON of the same shape.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    data = parse_yaml(text, Location(path))
    if not isinstance(data, Table):
        raise InventoryError("an inventory in YAML must be a mapping of groups", location=Location(path), hint=_SHAPE)
    if "plugin" in data:
        message = f"dynamic inventory plugins are not supported: {data['plugin']!r}"
        raise only_for_ansible(message, path, Location(path, data.lines["plugin"]))
    if "_meta" in data:
        raise InventoryError(
            "the output of an inventory script is not supported",
            location=Location(path, data.lines["_meta"]),
            hint="convert it to YAML: ansible-inventory -i SCRIPT --list --yaml --output hosts.yml",
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
        self.groups = Groups(Location(path))
        # A body can occur in several locations as an alias, and each of these in several more.
        self._read: set[tuple[str, int]] = set()

    def group(self, name: Any, body: Any, line: int) -> None:
        """Read the group `name` and its content."""
        location = Location(self.path, line)
        if not isinstance(name, str) or not name:
            raise InventoryError(f"{name!r} is not a valid group name", location=location, hint="quote it")
        self.groups.group(name, location)
        if isinstance(body, Table) and (name, id(body)) in self._read:
            return
        self._read.add((name, id(body)))
        table = self._table(body, f"group {name!r}", line)
        for section, content in table.items():
            line = table.lines[section]
            owner = f"{section} of group {name!r}"
            if section == "vars":
                self._group_variables(name, self._table(content, owner, line))
            elif section == "children":
                self._children(name, self._table(content, owner, line, allow_name=True))
            elif section == "hosts":
                self._hosts(name, self._table(content, owner, line, allow_name=True))
            else:
                raise InventoryError(
                    f"unknown key {section!r} in group {name!r}",
                    location=Location(self.path, line),
                    hint=_SHAPE,
                )

    def _group_variables(self, name: str, table: Table) -> None:
        for variable, setting in settings(table, self.path).items():
            self.groups.set_group(name, variable, setting)

    def _children(self, parent: str, table: Table) -> None:
        for child, body in table.items():
            line = table.lines[child]
            location = Location(self.path, line)
            if isinstance(child, str):
                self.groups.group(child, location)
                self.groups.add_child(parent, child, location)
            self.group(child, body, line)

    def _hosts(self, group: str, table: Table) -> None:
        for word, body in table.items():
            line = table.lines[word]
            location = Location(self.path, line)
            if not isinstance(word, str):
                raise InventoryError(f"{word!r} is not a valid host name", location=location, hint="quote it")
            variables = settings(self._table(body, f"host {word!r}", line), self.path)
            self.groups.add_hosts(word, group, location, variables.items())

    def _table(self, content: Any, owner: str, line: int, *, allow_name: bool = False) -> Table:
        """Return the mapping under a key; with `allow_name`, a single name counts as a mapping of one key."""
        if isinstance(content, Table):
            return content
        table = Table()
        if allow_name and isinstance(content, str):
            table[content] = None
            table.lines[content] = line
        elif content is not None:
            kind = "a list" if isinstance(content, list) else "a single value"
            raise InventoryError(
                f"{owner} must be a mapping, not {kind}",
                location=Location(self.path, line),
                hint=_SHAPE,
            )
        return table


def settings(table: Table, path: Path) -> dict[str, Setting]:
    """Return the variables of a mapping, by name."""
    return {str(name): Setting(value, Location(path, table.lines[name])) for name, value in table.items()}
