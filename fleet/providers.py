"""The providers by name, and their errors as the program's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fleet.errors import (
    CapacityError,
    CredentialsError,
    FleetError,
    NotReadyError,
    QuotaError,
    UnreachableError,
    UsageError,
)
from fleet.state import Store
from provision.provider import Provider, ProviderError

NAMES = ("local",)

_KINDS: dict[str, type[FleetError]] = {
    "usage": UsageError,
    "missing": NotReadyError,
    "credentials": CredentialsError,
    "quota": QuotaError,
    "capacity": CapacityError,
    "unreachable": UnreachableError,
}


def provider(name: str, store: Store) -> Provider:
    """The provider called `name`.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "local":
        from provision.local import LocalProvider

        return LocalProvider(store.local)
    raise UsageError(
        f"there is no provider {name!r}",
        cause=f"providers of this version: {', '.join(NAMES)}",
        next_step="fleet up --provider local",
    )


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what a provider reports as the error that the user gets."""
    try:
        yield
    except ProviderError as error:
        kind = _KINDS.get(error.kind, FleetError)
        raise kind(error.sentence, cause=error.cause, next_step=error.next_step) from error
