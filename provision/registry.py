"""Look up providers by name, in this package and in other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
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
        TypeError: a value has the wrong type.
    """
    kind = options_class(name)
    return replace(kind(), **convert_fields(kind, values))


def convert_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass from JSON, with lists as tuples; unknown fields are left out.

    Raises:
        TypeError: a value has another type than its field.
    """
    converted = {}
    for field in fields(kind):
        if field.name in values:
            value = values[field.name]
            converted[field.name] = tuple(value) if isinstance(value, list) else value
            if not _fits(str(field.type), converted[field.name]):
                raise TypeError(f"{field.name} cannot be {value!r}")
    return converted


def _fits(annotation: str, value: Any) -> bool:
    """Return whether a value has the type of a field, as far as its annotation is a simple one."""
    if annotation == "tuple[str, ...]":
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    kinds: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int, float), "float": (int, float)}
    return annotation not in kinds or isinstance(value, kinds[annotation])


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}
