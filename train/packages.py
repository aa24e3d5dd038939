"""Which packages a job imports for sure, and where, by its syntax trees alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from train.entry import EntryPoint, Kind
from train.script import ScriptError, imported_files, parse

_PATHS = {"path", "meta_path", "path_hooks", "modules"}  # of sys; who changes these decides what is found


def needed(entry: EntryPoint) -> dict[str, str]:
    """Top-level modules that a script imports as soon as it runs, by name, each with its first place, ``task.py:3``.

    Those of its own folder are left out; what they import at once is added. Under a condition, in `try`, `with` and
    functions nothing counts; nor does anything where the script changes ``sys.path``, or is no script of Python.
    """
    if entry.file is None or entry.kind not in (Kind.SCRIPT, Kind.MODULE):
        return {}
    roots = [entry.workdir] if entry.kind is Kind.MODULE else [entry.file.parent, entry.workdir]
    first = entry.sources() if entry.kind is Kind.MODULE else [entry.file]
    waiting = [
        entry.file,
        *(path for path in first if path.name == "__init__.py" and path.parent in entry.file.parents),
    ]
    known = {os.path.realpath(path) for path in waiting}
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop(0)
        try:
            tree = parse(path.read_bytes(), str(path))
        except (ScriptError, OSError):
            continue
        if _changes_paths(tree):
            return {}
        for parts, level, line in _at_once(tree.body):
            own = list(imported_files(_roots(path, level) or roots, parts))
            if not own and not level and not _is_folder(roots, parts[0]):
                place = f"{path.relative_to(entry.workdir).as_posix()}:{line}"
                found.setdefault(parts[0], place)
            for other in own:
                key = os.path.realpath(other)
                if key not in known and other.is_relative_to(entry.workdir):
                    known.add(key)
                    waiting.append(other)
    return found


def _roots(module: Path, level: int) -> list[Path]:
    """Where a relative import looks; empty where it is none."""
    return [module.parents[min(level, len(module.parents)) - 1]] if level else []


def _at_once(body: Sequence[ast.stmt]) -> Iterator[tuple[list[str], int, int]]:
    """Dotted name, level and line of the imports that a module executes whatever happens."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), 0, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*base, alias.name], node.level, node.lineno


def _changes_paths(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in _PATHS
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
        for node in ast.walk(tree)
    )


def _is_folder(roots: Sequence[Path], name: str) -> bool:
    """Whether a name may be that of a package without ``__init__.py``."""
    return any((root / name).is_dir() for root in roots)
