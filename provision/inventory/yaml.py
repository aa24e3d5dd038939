"""Inventories and files of variables in YAML: groups with ``hosts``, ``children`` and ``vars``, nested to any depth.

A repeated name in one mapping is an error. Of Ansible's tags, ``!unsafe`` gives text, and ``!vault`` gives the
encrypted value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.inventory.files import InventoryError, only_for_ansible
from provision.inventory.groups import Group, Groups, Setting, Settings

if TYPE_CHECKING:
    import yaml

VAULT = "__ansible_vault"
"""The only key of the mapping that represents an encrypted value."""

_INVALID = (ValueError, LookupError, TypeError)  # of a number, a truth value, a key
_TAG = "tag:yaml.org,2002:"
_SHAPE = "a group has the keys hosts, children, and vars; each contains one name per line, followed by a colon"


class Table(dict[Any, Any]):
    """A mapping of a file.

    Attributes:
        locations: File and line of each key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.locations: dict[Any, str] = {}


def read_yaml(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in YAML, or in JSON of the same shape.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    document = _load(text, path)
    if not isinstance(document, Table):
        raise InventoryError("an inventory in YAML must be a mapping of groups", str(path), hint=_SHAPE)
    if "plugin" in document:
        message = f"dynamic inventory plugins are not supported: {document['plugin']!r:.100}"
        raise only_for_ansible(message, path, document.locations["plugin"])
    if "_meta" in document:
        message = "the output of an inventory script is not supported"
        raise only_for_ansible(message, path, document.locations["_meta"])
    groups = Groups()
    read: set[tuple[str, int]] = set()
    for name, body in document.items():
        _read_group(groups, name, body, document.locations[name], read)
    groups.close()
    return groups


def read_variables(text: str, path: Path) -> Settings:
    """Return the variables of a file, by name.

    Raises:
        InventoryError: it is malformed.
    """
    return _settings(_load(text, path), "a file of variables", str(path))


def _read_group(groups: Groups, name: Any, body: Any, location: str, read: set[tuple[str, int]]) -> None:
    """Read a group and its content.

    Args:
        groups: Groups to which it is added.
        name: Its name.
        body: Its content.
        location: File and line of its name.
        read: Groups that have been read, with the identities of their content: as an alias, content can occur in
            several locations, and each of these in several more.
    """
    _check_name(name, "group", location)
    groups.setdefault(name, Group())
    if (name, id(body)) in read:
        return
    read.add((name, id(body)))
    for section, content, place in _entries(body, f"group {name!r}", location):
        owner = f"{section} of group {name!r}"
        if section == "vars":
            for variable, setting in _settings(content, owner, place).items():
                groups.set_variable(name, variable, setting)
        elif section == "hosts":
            for word, variables, line in _entries(content, owner, place, allow_name=True):
                _check_name(word, "host", line)
                groups.add_hosts(word, name, line, _settings(variables, f"host {word!r}", line).items())
        elif section == "children":
            for word, inner, line in _entries(content, owner, place, allow_name=True):
                _check_name(word, "group", line)
                groups.setdefault(word, Group())
                groups.add_child(name, word, line)
                _read_group(groups, word, inner, line, read)
        else:
            raise InventoryError(f"unknown key {section!r} in group {name!r}", place, hint=_SHAPE)


def _check_name(name: Any, kind: str, location: str) -> None:
    if not isinstance(name, str) or not name:
        raise InventoryError(f"{name!r} is not a valid {kind} name", location, hint="quote it")


def _settings(content: Any, owner: str, location: str) -> Settings:
    return {str(name): Setting(value, line) for name, value, line in _entries(content, owner, location)}


def _entries(content: Any, owner: str, location: str, *, allow_name: bool = False) -> Iterator[tuple[Any, Any, str]]:
    """Yield the key, the value, and the location of each entry of a mapping; nothing if it is empty.

    Args:
        content: The mapping.
        owner: Description of the mapping, for messages.
        location: File and line of its name.
        allow_name: A single name counts as a mapping with one key.
    """
    if isinstance(content, Table):
        for key, value in content.items():
            yield key, value, content.locations[key]
    elif allow_name and content is not None and not isinstance(content, list):
        yield content, None, location
    elif content is not None:
        kind = "a list" if isinstance(content, list) else "a single value"
        raise InventoryError(f"{owner} must be a mapping, not {kind}", location, hint=_SHAPE)


def _load(text: str, path: Path) -> Any:
    """Return the content of a file in YAML, with a `Table` for each mapping."""
    import yaml

    if text.lstrip().startswith(("{", "[")):
        text = text.replace("\t", " ")  # JSON may be indented with tabs, which YAML forbids
    try:
        loader = _loader()(text)
        loader.name = str(path)
        return loader.get_single_data()
    except (yaml.YAMLError, RecursionError, *_INVALID) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        general = "nested too deeply" if isinstance(error, RecursionError) else "invalid value"
        raise InventoryError(
            f"invalid YAML: {getattr(error, 'problem', None) or getattr(error, 'reason', None) or general}",
            f"{path}:{mark.line + 1}" if mark else str(path),
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

    def vault(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Mapping[str, str]:
        return {VAULT: text(loader, node)}

    for tag in (f"{_TAG}timestamp", "!unsafe"):
        Loader.add_constructor(tag, text)
    for tag in ("!vault", "!vault-encrypted"):
        Loader.add_constructor(tag, vault)
    Loader.add_constructor(f"{_TAG}map", _read_table)
    return Loader


def _read_table(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Table:
    import yaml

    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="keys must be strings", problem_mark=key.start_mark)
        if key.value in lines and key.tag != f"{_TAG}merge":
            problem = f"duplicate key {key.value!r}, first in line {lines[key.value]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        lines[key.value] = key.start_mark.line + 1
    loader.flatten_mapping(node)  # replaces merge keys
    content = Table()
    for key, value in node.value:
        try:
            name = loader.construct_object(key, deep=True)
            content[name] = loader.construct_object(value, deep=True)
        except _INVALID:
            raise yaml.MarkedYAMLError(problem="invalid value", problem_mark=value.start_mark) from None
        content.locations[name] = f"{key.start_mark.name}:{key.start_mark.line + 1}"
    return content
