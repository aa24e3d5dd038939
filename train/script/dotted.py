"""Resolve the names in a Python source to full names: `tf.keras.Model` is ``tensorflow.keras.Model``.

Names are followed through imports and plain assignments of one module, in the order of its lines and without regard
to scopes. The result of a call has the name of the function: with ``model = tf.keras.Sequential()`` the use of
`model.fit` is ``tensorflow.keras.Sequential.fit``. A name that cannot be resolved begins with ``?``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN = "?"
_COMPAT = re.compile(r"^tensorflow\.compat\.v[12](?=\.|$)")


@dataclass(frozen=True)
class Use:
    """One use of a name.

    Attributes:
        name: Its full name without the version of the interface, ``tensorflow.Session`` for `tf.compat.v1.Session`;
            for an import, the full name of the import.
        written: The name with the version.
        line: Line number, from 1.
        column: Column, from 1.
        call: The call, if the name is called.
        file: Name of the source, as given.
    """

    name: str
    written: str
    line: int
    column: int
    call: ast.Call | None = None
    file: str = ""

    @property
    def last(self) -> str:
        """The last part of the name: ``fit``."""
        return self.name.rpartition(".")[2]

    def within(self, prefix: str) -> bool:
        """Return whether the name is `prefix` or a name in it."""
        return self.name == prefix or self.name.startswith(prefix + ".")


def uses(tree: ast.Module, file: str = "") -> list[Use]:
    """Return every import, dotted name, and call of a module, in the order of their lines."""
    nodes = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    aliases: dict[str, str] = {}
    for node in nodes:
        _learn(node, aliases)
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    result = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            result += [Use(_plain(item.full), item.full, node.lineno, 1, file=file) for item in _imported(node)]
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = _resolve(node, aliases)
            line = node.end_lineno or node.lineno  # of the attribute, if a chain has several lines
            result.append(Use(_plain(name), name, line, node.col_offset + 1, called.get(id(node)), file))
    return [use for use in result if use.name != UNKNOWN]


class _Import(NamedTuple):
    bound: str  # the name that the module can use now
    target_name: str
    full: str  # what was imported


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[_Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            full = alias.name
            top = full.partition(".")[0]
            yield _Import(alias.asname, full, full) if alias.asname else _Import(top, top, full)
    elif node.module and not node.level:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield _Import(alias.asname or alias.name, full, full)


def _learn(node: ast.AST, aliases: dict[str, str]) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for item in _imported(node):  # of `try: import a as x` and `except ImportError: import b as x` the first
            aliases.setdefault(item.bound, item.target_name)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Name | ast.Attribute | ast.Call):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        full = _resolve(node.value, aliases)
        aliases.update({target.id: full for target in targets if isinstance(target, ast.Name)})


def _plain(name: str) -> str:
    return _COMPAT.sub("tensorflow", name)


def _resolve(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        return f"{_resolve(node.value, aliases)}.{node.attr}"
    if isinstance(node, ast.Call):
        return _resolve(node.func, aliases)
    return UNKNOWN
