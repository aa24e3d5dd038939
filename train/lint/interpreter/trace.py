"""Trace of a script: its calls to code outside the sources in order, and their conditions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from train.lint.interpreter.values import Call, Guard, Location, Value


def location_of(node: ast.AST, file: str, source: list[str]) -> Location:
    """Return the start of `node`; for an attribute in a chain of several lines the line of its last name."""
    line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.end_lineno and func.end_lineno != line:
            line = func.end_lineno
            offset = (func.end_col_offset or 1) - len(func.attr.encode())
    text = source[line - 1] if 0 < line <= len(source) else ""
    return Location(file, line, len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "replace")) + 1)


def apart(call: Call, other: Call) -> bool:
    """Return whether both exclude each other because they are in different arms of one condition."""
    arms = {guard.number: guard.arm for guard in call.guards}
    return any(arms.get(guard.number, guard.arm) != guard.arm for guard in other.guards)


@dataclass(frozen=True)
class Exit:
    """A loop may be left, or the rest of its body skipped, under `guards`."""

    loops: tuple[int, ...]
    guards: tuple[Guard, ...]


@dataclass(eq=False)
class Loop:
    """A `for` loop over `over`, and whether its body may leave it."""

    number: int
    over: Value
    location: Location
    left: bool
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class Import:
    """A module or name outside the sources was imported."""

    name: str
    order: int
    location: Location


@dataclass(eq=False)
class Trace:
    """The recorded trace; `complete` unless the interpreter gave up before the end."""

    calls: list[Call] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)  # environment variables
    chief_tests: list[Location] = field(default_factory=list)  # whether the type of the task is chief
    tests_index: bool = False  # the script compares the index of the task
    complete: bool = True
    without_ipython: bool = False  # the script expects that get_ipython may not exist
