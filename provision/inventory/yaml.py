"""Inventories and files of variables in YAML: groups with ``hosts``, ``children`` and ``vars``, nested to any depth.

A repeated name in one mapping is an error. Of Ansible's tags, ``!unsafe`` gives text, and ``!vault`` gives the
encrypted value.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.inventory.files import InventoryError, Location, only_for_ansible
from provision.inventory.groups import Groups, Setting, Settings

if TYPE_CHECKING:
    import yaml

VAULT = "__ansible_vault"
"""The only key of the mapping that represents an encrypted value."""

_TAG = "tag:yaml.org,2002:"
_SHAPE = "a group has the keys hosts, children, and vars; each contains one name per line, followed by a colon"


def read_yaml(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in YAML, or in JSON of the same shape.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    import yaml

    document = _Document(text, path)
    if not isinstance(document.root, yaml.MappingNode):
        raise InventoryError("an inventory in YAML must be a mapping of groups", location=Location(path), hint=_SHAPE)
    groups = list(document.entries(document.root, "an inventory", Location(path)))
    for name, node, location in groups:
        if name == "plugin":
            message = f"dynamic inventory plugins are not supported: {document.value(node)!r}"
            raise only_for_ansible(message, path, location)
        if name == "_meta":
            raise only_for_ansible("the output of an inventory script is not supported", path, location)
    reading = _Reading(document, Groups(Location(path)))
    for name, node, location in groups:
        reading.group(name, node, location)
    reading.groups.close()
    return reading.groups


def read_variables(text: str, path: Path) -> Settings:
    """Return the variables of a file, by name.

    Raises:
        InventoryError: it is malformed.
    """
    document = _Document(text, path)
    return document.settings(document.root, "a file of variables", Location(path))


class _Reading:
    """Walks the groups of one file."""

    def __init__(self, document: _Document, groups: Groups) -> None:
        self.groups = groups
        self._document = document
        # A body can occur in several locations as an alias, and each of these in several more.
        self._read: set[tuple[str, int]] = set()

    def group(self, name: Any, body: yaml.Node | None, location: Location) -> None:
        """Read the group `name` and its content."""
        self._check_name(name, "group", location)
        self.groups.group(name, location)
        if (name, id(body)) in self._read:
            return
        self._read.add((name, id(body)))
        for section, content, place in self._document.entries(body, f"group {name!r}", location):
            owner = f"{section} of group {name!r}"
            if section == "vars":
                for variable, setting in self._document.settings(content, owner, place).items():
                    self.groups.set_group(name, variable, setting)
                continue
            if section not in ("children", "hosts"):
                raise InventoryError(f"unknown key {section!r} in group {name!r}", location=place, hint=_SHAPE)
            for word, node, line in self._document.entries(content, owner, place, allow_name=True):
                self._check_name(word, "host" if section == "hosts" else "group", line)
                if section == "hosts":
                    variables = self._document.settings(node, f"host {word!r}", line)
                    self.groups.add_hosts(word, name, line, variables.items())
                else:
                    self.groups.group(word, line)
                    self.groups.add_child(name, word, line)
                    self.group(word, node, line)

    def _check_name(self, name: Any, kind: str, location: Location) -> None:
        if not isinstance(name, str) or not name:
            raise InventoryError(f"{name!r} is not a valid {kind} name", location=location, hint="quote it")


class _Document:
    """A YAML file, as nodes with their lines.

    Attributes:
        root: The node of the file; None if it is empty.
    """

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        if text.lstrip().startswith(("{", "[")):
            text = text.replace("\t", " ")  # JSON may be indented with tabs, which YAML forbids
        with self._translated():
            self._loader = _loader()(text)
            self.root: yaml.Node | None = self._loader.get_single_node()

    def value(self, node: yaml.Node | None) -> Any:
        """Return the plain value of a node."""
        with self._translated(node=node):
            return None if node is None else self._loader.construct_object(node, deep=True)

    def settings(self, node: yaml.Node | None, owner: str, location: Location) -> Settings:
        """Return the variables of a mapping, by name."""
        entries = self.entries(node, owner, location)
        return {str(name): Setting(self.value(value), line) for name, value, line in entries}

    def entries(
        self, node: yaml.Node | None, owner: str, location: Location, *, allow_name: bool = False
    ) -> Iterator[tuple[Any, yaml.Node | None, Location]]:
        """Yield the name, the node, and the location of each entry of a mapping; nothing if it is empty.

        Args:
            node: Node of the mapping.
            owner: Description of the mapping, for messages.
            location: Location of its name.
            allow_name: A single name counts as a mapping with one key.
        """
        import yaml

        if node is None or node.tag == f"{_TAG}null":
            return
        if allow_name and isinstance(node, yaml.ScalarNode):
            yield self.value(node), None, location
            return
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
            raise InventoryError(f"{owner} must be a mapping, not {kind}", location=location, hint=_SHAPE)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InventoryError("invalid YAML: keys must be strings", location=Location(self._path, line))
            if key.value in lines and key.tag != f"{_TAG}merge":
                message = f"invalid YAML: duplicate key {key.value!r}, first in line {lines[key.value]}"
                raise InventoryError(message, location=Location(self._path, line))
            lines[key.value] = line
        with self._translated():
            self._loader.flatten_mapping(node)  # replaces merge keys
        merged = {key.value: (key, value) for key, value in node.value}
        for key, value in merged.values():
            yield self.value(key), value, Location(self._path, key.start_mark.line + 1)

    @contextlib.contextmanager
    def _translated(self, node: yaml.Node | None = None) -> Iterator[None]:
        """Raise errors of YAML as errors of the inventory."""
        import yaml

        try:
            yield
        except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: of a number
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            mark = mark or (node.start_mark if node else None)
            general = "nested too deeply, or recursive" if isinstance(error, RecursionError) else "invalid value"
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or general
            raise InventoryError(
                f"invalid YAML: {problem}",
                location=Location(self._path, mark.line + 1 if mark else 0),
                cause=getattr(error, "context", None) or "",
                hint="indent with spaces, and quote names that contain special characters",
            ) from None


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loads plain values only."""

    def text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
        return str(loader.construct_scalar(node))

    def vault(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> dict[str, str]:
        return {VAULT: text(loader, node)}

    def refuse(_loader: yaml.SafeLoader, node: yaml.Node) -> None:
        problem = f"could not determine a constructor for the tag {node.tag!r}"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    for tag in (f"{_TAG}timestamp", "!unsafe"):
        Loader.add_constructor(tag, text)
    for tag in ("!vault", "!vault-encrypted"):
        Loader.add_constructor(tag, vault)
    for tag in ("binary", "omap", "pairs", "set"):
        Loader.add_constructor(_TAG + tag, refuse)
    return Loader
