"""Google's classes by name, imported at their first use, one by one.

The package imports a hundred services, which takes 1.4 s of CPU time in each worker of the tests.
"""

from __future__ import annotations

import importlib
from typing import Any

from provision.gce.rest.clients import client_class, types

_MODULES = {
    "auth_exceptions": "google.auth.exceptions",
    "auth_requests": "google.auth.transport.requests",
    "credentials": "google.oauth2.credentials",
    "exceptions": "google.api_core.exceptions",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if not name[0].isupper():  # plugins of pytest look for their marks in each module that a test imports
        raise AttributeError(name)
    return client_class(name) if name.endswith("Client") else getattr(types(), name)
