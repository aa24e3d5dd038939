"""Find the packages that a job certainly imports, and where, from its syntax trees alone."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from train.script.dotted import uses
from train.script.entry import EntryPoint, Kind, module_name
from train.script.requirements import FILES, distribution_of
from train.script.source import Source, find_imports, follow, packages_of

# Calls that fail without the package tensorboard on TensorFlow 2.21; none of the API of version 1 does.
_SUMMARIES = tuple(f"tensorflow.summary.{name}" for name in ("audio", "histogram", "image", "scalar", "text"))
_KERAS = ("tensorflow.keras", "keras", "tf_keras")
CALLS = {
    "tensorboard": (*(f"{keras}.callbacks.TensorBoard" for keras in _KERAS), *_SUMMARIES),
    "scipy": tuple(
        f"{keras}{package}.preprocessing.image.ImageDataGenerator" for keras in _KERAS for package in ("", ".legacy")
    ),
}
"""Calls that fail without a package that no import names."""
_PACKAGES = {call: package for package, calls in CALLS.items() for call in calls}
_PARENTS = 3  # number of parent directories that are searched for a missing module


@dataclass(frozen=True)
class Imports:
    """The top-level modules that a job imports as soon as it runs.

    Attributes:
        locations: Location of the import of each module that the interpreter must find, ``task.py:3``, or of the call
            that needs it.
        unchecked: Location of the import of each module that may come from elsewhere because of `reason`.
        reason: The change of Python's module search, ``task.py:2 changes sys.path``; empty: none.
        directories: Additional absolute directories in which Python searches for modules.
    """

    locations: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    directories: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The modules that were not checked, with the reason; empty: none."""
        names = [
            f"{name} ({location})" for name, location in self.unchecked.items() if name not in sys.stdlib_module_names
        ]
        return f"not checked whether these can be imported: {', '.join(names)}; {self.reason}" if names else ""


def needed(entry: EntryPoint, pushed: Collection[str] = (), python_path: str = "") -> Imports:
    """Return the top-level modules that a script imports as soon as it runs, each with its first location.

    Modules of the script's directory are replaced by the modules that they import immediately. An import under a
    condition, in `try`, `with`, or a function does not count. If the script changes Python's module search, modules
    that may be among the uploaded files are not checked; after a change of Python's import hooks, none are.

    Args:
        entry: The entry point of the job; only Python scripts and modules are read.
        pushed: Paths of the files that are uploaded.
        python_path: PYTHONPATH of the job.
    """
    if entry.first is None:
        return Imports()
    reading = _Reading(entry, *entry.first)
    changes = list(reading.changes)
    if python_path:
        changes.insert(0, _Change("PYTHONPATH is set", directories=tuple(python_path.split(os.pathsep))))
    if not changes:
        return Imports(reading.locations)
    near = {part.partition(".")[0] for path in pushed for part in path.split("/")}
    opaque = next((change for change in changes if change.opaque), None)
    loose = {name: location for name, location in reading.locations.items() if opaque or name in near}
    firm = {name: location for name, location in reading.locations.items() if name not in loose}
    directories = (directory for change in changes for directory in change.directories if directory.startswith("/"))
    return Imports(firm, loose, (opaque or changes[0]).text, tuple(directories))


def advice(module: str, entry: EntryPoint | None = None) -> str:
    """Return what to do if hosts do not find a module.

    Args:
        module: Its top-level name.
        entry: The entry point that imports it; None: unknown.
    """
    package = distribution_of(module)
    if module in ("horovod", "mpi4py", "byteps"):
        return (
            f"`fleet` does not start {module}: create tf.distribute.MultiWorkerMirroredStrategy() instead, "
            "which takes all workers from TF_CONFIG; FLEET_RANK and FLEET_NUM_TASKS replace rank and size"
        )
    if package:
        return f"add {package} to {FILES} next to the script"
    file = entry.file if entry is not None and entry.kind in (Kind.SCRIPT, Kind.MODULE) else None
    for above in list(file.parents)[1 : _PARENTS + 1] if file is not None else ():
        if (above / f"{module}.py").is_file() or any((above / module).glob("*.py")):
            name = module_name(file, above) if file is not None else ""
            return f"it is in {above}: run the script from there, --workdir {shlex.quote(str(above))} -m {name}"
    return f"push it with the script if it is yours (--workdir), or add its package to {FILES}"


class _Change(NamedTuple):
    """A statement that changes where Python looks for modules."""

    text: str
    opaque: bool = False  # any module may be found afterwards
    directories: tuple[str, ...] = ()


class _Reading:
    """The imports of a script and of its modules.

    Args:
        entry: The entry point.
        file: The file that runs first.
        module: True if it is run as a module.
    """

    def __init__(self, entry: EntryPoint, file: Path, module: bool) -> None:
        self._roots = [entry.workdir] if module else [file.parent]
        self.locations: dict[str, str] = {}
        self.changes: list[_Change] = []
        self._provided: set[str] = set()  # modules that the script creates
        first = [file, *(packages_of(file, entry.workdir) if module else ())]
        follow(first, entry.workdir, self._of_file)
        self.locations = {name: at for name, at in self.locations.items() if name not in self._provided}

    def _of_file(self, source: Source) -> Iterator[Path]:
        """Add the imports of one file; return the files of the job that it imports."""
        name, tree = source.name, source.tree
        if tree is None:
            return
        self._add_changes(tree, name)
        for use in uses(tree):
            package = _PACKAGES.get(use.name) if use.call is not None and "compat.v1" not in use.written else None
            if package:
                self.locations.setdefault(package, f"{name}:{use.line}")
        for item in find_imports(tree.body):
            files = list(item.files(source.path, self._roots))
            # A directory may be a package without ``__init__.py``.
            if not files and not item.level and not any((root / item.parts[0]).is_dir() for root in self._roots):
                self.locations.setdefault(item.parts[0], f"{name}:{item.line}")
            yield from files

    def _add_changes(self, tree: ast.Module, file: str) -> None:
        """Add the uses of ``sys.path``, ``sys.modules``, and Python's import hooks; each may change it."""
        nodes = list(ast.walk(tree))
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        absolute = tuple(value for value in constants if isinstance(value, str) and value.startswith("/"))
        for node in nodes:
            name = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Subscript) else ""
            location = f"{file}:{getattr(node, 'lineno', 1)}"
            is_import = isinstance(node, ast.ImportFrom) and node.module == "sys" and "path" in ast.unparse(node)
            if name == "sys.path" or name.endswith(".addsitedir") or is_import:
                self.changes.append(_Change(f"{location} changes sys.path", directories=absolute))
            elif name in ("sys.meta_path", "sys.path_hooks"):
                self.changes.append(_Change(f"{location} changes {name}", opaque=True))
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and name.startswith("sys.modules[")
            ):
                if isinstance(node.slice, ast.Constant):
                    self._provided.add(str(node.slice.value).partition(".")[0])
                elif name != "sys.modules[__name__]":
                    self.changes.append(_Change(f"{location} changes sys.modules", opaque=True))
