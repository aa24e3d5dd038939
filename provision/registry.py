"""Look up providers by name, in this package and in other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from provision.options import PreemptionNotice, ProviderOptions

if TYPE_CHECKING:
    from provision.provider import Provider

GROUP = "fleet.providers"
"""Group of entry points in which other packages register providers, ``NAME = "package.module:Class"``."""

REGISTRY: Mapping[str, str] = {
    "local": "provision.local.options:LocalOptions",
    "gce": "provision.gce.options:GceOptions",
    "static": "provision.static.options:StaticOptions",
    "slurm": "provision.allocation.options:SlurmOptions",
    "pbs": "provision.allocation.options:PbsOptions",
}
"""The `ProviderOptions` class of each provider of this package."""

NAMES = tuple(REGISTRY)


class UnknownProviderError(ValueError):
    """A provider name is unknown."""


@cache
def options_class(name: str) -> type[ProviderOptions]:
    """Return the options class of a provider. Entry points are read only for names that the table lacks.

    Raises:
        UnknownProviderError: the provider does not exist, or its package cannot be imported.
    """
    reference = REGISTRY.get(name) or _entry_points().get(name)
    if not reference:
        raise UnknownProviderError(f"unknown provider {name!r}")
    try:
        loaded = _load(reference)
    except Exception as error:  # the code of another package
        raise UnknownProviderError(f"provider {name!r} cannot be imported: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, ProviderOptions)):
        raise UnknownProviderError(f"provider {name!r} does not declare ProviderOptions")
    return loaded


def installed_names() -> tuple[str, ...]:
    """Return the names of all providers: those of this package, then those of other packages."""
    return tuple(dict.fromkeys((*NAMES, *sorted(_entry_points()))))


def preemption_notices(*others: type[ProviderOptions]) -> list[PreemptionNotice]:
    """Return the preemption notices of the providers of this package and of `others`."""
    classes = dict.fromkeys([*map(options_class, NAMES), *others])
    return [kind.preemption_notice for kind in classes if kind.preemption_notice is not None]


def provider_class(options: type[ProviderOptions]) -> type[Provider]:
    """Return the provider that an options class declares.

    Raises:
        UnknownProviderError: it cannot be imported.
    """
    try:
        loaded: type[Provider] = _load(options.implementation)
    except Exception as error:  # the code of another package
        if options.__module__.startswith("provision."):
            raise
        raise UnknownProviderError(f"{options.implementation} cannot be imported: {error}") from error
    return loaded


def make_options(name: str, values: Mapping[str, Any]) -> ProviderOptions:
    """Return the options of a provider from JSON; unknown fields are ignored.

    Raises:
        UnknownProviderError: the provider does not exist.
    """
    kind = options_class(name)
    fields = kind.__dataclass_fields__
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key in fields
    }
    return replace(kind(), **given)


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}
