"""Import only those modules of Google's client library that are used.

An import of the package google.cloud.compute_v1 imports all of its about 100 services, which takes 1.4 s of CPU time.
This module registers the package without running it, so that single services can be imported, which takes 0.5 s.
"""

from __future__ import annotations

import gc
import importlib
import re
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

PACKAGE = "google.cloud.compute_v1"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def client_class(name: str) -> Any:
    """Return the client class `name`, ``RegionInstancesClient``."""
    service = _WORD.sub("_", name.removesuffix("Client")).lower()
    return getattr(_imported(f"services.{service}"), name)


def types() -> Any:
    """Return the module of all messages."""
    return _imported("types.compute")


def _imported(path: str) -> ModuleType:
    if PACKAGE not in sys.modules:
        _stand_in()
    collects = gc.isenabled()
    gc.disable()  # thousands of classes are created, and none of them is garbage
    try:
        return importlib.import_module(f"{PACKAGE}.{path}")
    finally:
        if collects:
            gc.enable()


def _stand_in() -> None:
    """Register the package without running it; it is run when a name that is not one of its modules is read."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        return  # the import will report that it is missing
    module = module_from_spec(spec)
    loader = spec.loader

    def whole(name: str) -> Any:
        if name.startswith("__") or find_spec(f"{PACKAGE}.{name}") is not None:
            raise AttributeError(name)  # the import continues with the module of that name
        del module.__dict__["__getattr__"]
        loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = whole
    sys.modules[PACKAGE] = module
