"""Google's classes by name, imported one by one: the package imports a hundred services, 1.4 s in each worker."""

from __future__ import annotations

from typing import Any

from provision.gce.rest.clients import client_class, types


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return client_class(name) if name.endswith("Client") else getattr(types(), name)
