"""Tests of the rule that each option does something: a function of a command reads each of its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fleet.cli

FILES = sorted(Path(fleet.cli.__file__).parent.rglob("*.py"))


def unread_options(tree: ast.Module) -> Iterator[str]:
    """Yield each parameter of a command, and each field of a class of options, that nothing in the module reads."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("command(" in ast.unparse(each) for each in node.decorator_list):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            parameters = (*node.args.args, *node.args.kwonlyargs)
            yield from (f"{node.name}: {each.arg}" for each in parameters if each.arg not in names)
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Options"):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            yield from (
                f"{node.name}: {each.id}"
                for each in fields
                if isinstance(each, ast.Name) and each.id not in attributes
            )


def test_each_option_is_read() -> None:
    assert [each for file in FILES for each in unread_options(ast.parse(file.read_text()))] == []
