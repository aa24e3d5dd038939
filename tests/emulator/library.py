"""Google's classes by name, imported at their first use: the import takes 1.4 s of CPU time in each worker."""

from __future__ import annotations

import importlib
from typing import Any

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
    return getattr(importlib.import_module("google.cloud.compute_v1"), name)
