"""Lets `mnist.load_data()` of keras and tf_keras read the file that MNIST_NPZ names.

Both refuse every file but the original, by its hash, and then download. With this directory on PYTHONPATH, Python
imports this module at its start; it waits for their module `mnist` and replaces the function that fetches the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULES = ("keras.src.datasets.mnist", "tf_keras.src.datasets.mnist")


class _Loader(Loader):
    """Loads as `original` does, then replaces `get_file`."""

    def __init__(self, original: Loader) -> None:
        self.original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, not yet executed."""
        return self.original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module."""
        self.original.exec_module(module)
        module.__dict__["get_file"] = _named_file


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `fullname`, with the loader above as a wrapper of its loader."""
        if fullname not in MODULES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _named_file(*_args: Any, **_options: Any) -> str:
    return os.environ["MNIST_NPZ"]


if "MNIST_NPZ" in os.environ:
    sys.meta_path.insert(0, _Finder())
