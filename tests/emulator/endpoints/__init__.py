"""Endpoints that do not belong to an API; the modules of this package answer them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from tests.emulator.api import Answer, Request

if TYPE_CHECKING:
    from tests.emulator.server import Emulator

Endpoint = Callable[["Emulator", Request], Answer]
_ENDPOINTS: dict[str, Endpoint] = {}


def endpoint(*paths: str) -> Callable[[Endpoint], Endpoint]:
    """Let the decorated function answer requests for these paths; a path that ends with a slash is a prefix."""

    def register(answer: Endpoint) -> Endpoint:
        _ENDPOINTS.update(dict.fromkeys(paths, answer))
        return answer

    return register


def endpoint_of(path: str) -> Endpoint | None:
    """Return the function that answers requests for a path; None if it belongs to an API."""
    _load()
    prefixes = (registered for registered in _ENDPOINTS if registered.endswith("/") and path.startswith(registered))
    return _ENDPOINTS.get(path) or _ENDPOINTS.get(next(prefixes, ""))


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
