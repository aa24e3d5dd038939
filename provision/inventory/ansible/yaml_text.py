"""Reads YAML as plain values, with the line of every key; ambiguous YAML is refused.

A repeated key in a mapping is an error, as are tags of values that are not plain. Of Ansible's tags, ``!unsafe``
gives text, and ``!vault`` gives the encrypted value.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from provision.inventory.errors import InventoryError, Location

if TYPE_CHECKING:
    import yaml

VAULT = "__ansible_vault"
"""The one key of what stands for a sealed value."""

_TAG = "tag:yaml.org,2002:"


class Table(dict[Any, Any]):
    """A mapping of a YAML file.

    Attributes:
        lines: The line of each key, from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


def parse_yaml(text: str, location: Location) -> Any:
    """Return the only document of a YAML or JSON file; None if it is empty.

    Args:
        text: Content of the file.
        location: The file.

    Raises:
        InventoryError: it is malformed.
    """
    import yaml

    if text.lstrip().startswith(("{", "[")):
        text = text.replace("\t", " ")  # JSON may be indented with tabs, which YAML forbids
    try:
        loader = _loader()(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        raise InventoryError(
            f"invalid YAML: {error.problem}",
            location=Location(location.path, line),
            cause=error.context or "",
            hint="indent with spaces, and quote names that contain special characters",
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InventoryError("invalid character", location=Location(location.path, line)) from None
    except RecursionError:
        raise InventoryError("nested too deeply, or recursive", location=location) from None


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loads plain values only."""

    Loader.yaml_constructors = {
        _TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind]
        for kind in ("null", "bool", "int", "float", "str")
    }
    Loader.yaml_constructors |= {
        _TAG + "timestamp": _text,
        "!unsafe": _text,
        "!vault": _sealed,
        "!vault-encrypted": _sealed,
        _TAG + "seq": _list,
        _TAG + "map": _table,
        None: yaml.SafeLoader.construct_undefined,
    }
    return Loader


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _sealed(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> dict[str, str]:
    return {VAULT: _text(loader, node)}


def _list(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> list[Any]:
    return list(loader.construct_sequence(node, deep=True))


def _table(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Table:
    _refuse_twice(loader, node)
    loader.flatten_mapping(node)
    table = Table()
    for key_node, value_node in node.value:
        key = _construct(loader, key_node)
        table[key] = _construct(loader, value_node)
        table.lines[key] = key_node.start_mark.line + 1
    return table


def _refuse_twice(loader: yaml.SafeLoader, node: yaml.MappingNode) -> None:
    """Raise an error if a mapping has a key twice, or an invalid key."""
    from yaml.constructor import ConstructorError

    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = _construct(loader, key_node)
        if isinstance(key, (list, dict)):
            raise ConstructorError(None, None, "keys must be strings", key_node.start_mark)
        if key in seen and key_node.tag != _TAG + "merge":
            problem = f"duplicate key {key!r}, first in line {seen[key]}"
            raise ConstructorError(None, None, problem, key_node.start_mark)
        seen[key] = key_node.start_mark.line + 1


def _construct(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    from yaml.constructor import ConstructorError

    if node.tag == _TAG + "merge":
        return "<<"
    try:
        return loader.construct_object(node, deep=True)
    except ValueError:
        raise ConstructorError(None, None, "invalid value", node.start_mark) from None
