"""Full names of what a Python source uses: `tf.keras.Model` is ``tensorflow.keras.Model``, whatever `tf` is called.

Names are followed through imports and plain assignments of one module, in the order of its lines and without regard
to scopes; what a call returns goes by the name of what was called, so that with ``model = tf.keras.Sequential()``
the use of `model.fit` is ``tensorflow.keras.Sequential.fit``. What cannot be told begins with ``?``.
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
        name: Its full name; of an import, what is imported.
        line: Where, from 1.
        call: The call, where what is named is called there.
    """

    name: str
    line: int
    call: ast.Call | None = None

    @property
    def last(self) -> str:
        """The last part of the name: ``fit``."""
        return self.name.rpartition(".")[2]

    def within(self, prefix: str) -> bool:
        """Whether this is `prefix`, or something in it."""
        return self.name == prefix or self.name.startswith(prefix + ".")


def uses(tree: ast.Module) -> list[Use]:
    """Every import, dotted name and call of a module, in the order of their lines."""
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
            result += [Use(item.full, node.lineno) for item in _imported(node)]
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = _resolve(node, aliases)
            line = node.end_lineno or node.lineno  # of the attribute, where a chain runs over several lines
            result.append(Use(name, line, called.get(id(node))))
    return [use for use in result if use.name != UNKNOWN]


class _Import(NamedTuple):
    bound: str  # the name that the module can use now
    stands_for: str
    full: str  # what was imported


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[_Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            full = _plain(alias.name)
            top = full.partition(".")[0]
            yield _Import(alias.asname, full, full) if alias.asname else _Import(top, top, full)
    elif node.module and not node.level:
        for alias in node.names:
            full = _plain(f"{node.module}.{alias.name}")
            yield _Import(alias.asname or alias.name, full, full)


def _learn(node: ast.AST, aliases: dict[str, str]) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for item in _imported(node):  # of `try: import a as x` and `except ImportError: import b as x` the first
            aliases.setdefault(item.bound, item.stands_for)
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
        return _plain(f"{_resolve(node.value, aliases)}.{node.attr}")
    if isinstance(node, ast.Call):
        return _resolve(node.func, aliases)
    return UNKNOWN
