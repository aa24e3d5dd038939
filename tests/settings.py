"""Settings as the command line gives them."""

from __future__ import annotations

from typing import Any

from fleet.settings import Settings
from provision.options import declarations
from provision.registry import NAMES, options_class

_GENERAL = {"name", "provider", "workers", "python", "packages"}


def settings(**values: Any) -> Settings:
    """Settings in which each option of a provider is set for all providers that have it."""
    given = {name: values.pop(name) for name in _GENERAL & set(values)}
    options = {
        provider: found
        for provider in NAMES
        if (found := {name: values[name] for name in declarations(options_class(provider)) if name in values})
    }
    return Settings(**given, options=options)
