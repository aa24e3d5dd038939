"""Find names of TensorFlow 1 that TensorFlow 2 has only in ``tf.compat.v1``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from train.lint.interpreter.values import Location
from train.script.source import find_imports

_NAMES = re.compile(
    r"^(?:contrib\b|app\.run|flags\.|logging\.|gfile\.|layers\.|losses\.\w+_\w+|placeholder\b|Session\b|InteractiveSession\b"
    r"|ConfigProto\b|global_variables_initializer\b|get_variable\b|variable_scope\b|set_random_seed\b|reset_default_graph\b"
    r"|train\.(?:\w+Optimizer\b|MonitoredTrainingSession\b|Saver\b|SyncReplicas\w+|get_or_create_global_step\b"
    r"|Supervisor\b|replica_device_setter\b|Server\b))"
)


def uses_of_tf1(trees: Mapping[str, ast.Module]) -> Iterator[tuple[Location, str]]:
    """Yield each use of a name that TensorFlow 2 does not have, ``tf.Session``, by files and lines.

    A script that imports ``tensorflow.compat.v1`` runs on TensorFlow 2 and yields no use.
    """
    for file, tree in trees.items():
        aliases = _aliases(tree)
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        seen: set[int] = set()
        for node in sorted(nodes, key=lambda item: (item.lineno, item.col_offset, -len(ast.dump(item)))):
            name = _dotted(node)
            first, _, rest = name.partition(".")
            if first in aliases and node.lineno not in seen and _NAMES.match(rest):
                seen.add(node.lineno)
                yield Location(file, node.lineno, node.col_offset + 1), f"tf.{rest}"
        for item in find_imports(ast.walk(tree)):
            if item.parts[:2] == ["tensorflow", "contrib"]:
                yield Location(file, item.line, 1), ".".join(["tf", *item.parts[1:]])


def _aliases(tree: ast.Module) -> set[str]:
    """Return the names under which a module imports TensorFlow."""
    result: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        for item in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            bound = item.asname or item.name
            plain = isinstance(node, ast.Import) and item.name == "tensorflow"
            (result if plain else others).add(bound)
    return result - others


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
