"""Create settings as the command line creates them."""

from __future__ import annotations

from typing import Any

from fleet.settings import Settings
from provision.options import declarations
from provision.registry import NAMES, options_class

_GENERAL = {"name", "provider", "workers", "python", "packages", "index_url", "pip_proxy"}


def settings(**values: Any) -> Settings:
    """Return settings in which each option of a provider is set for all providers that have it."""
    given = {name: values.pop(name) for name in _GENERAL & set(values)}
    options = {
        provider: provider_options
        for provider in NAMES
        if (
            provider_options := {
                name: values[name] for name in declarations(options_class(provider)) if name in values
            }
        )
    }
    return Settings(**given, options=options)
