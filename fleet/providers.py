"""The providers by name, and their errors as the program's own."""

from __future__ import annotations

from fleet.config import caller
from fleet.errors import (
    UsageError,
)
from fleet.state import Store
from fleet.steps import Step
from provision.model import CloudSpec
from provision.provider import Provider

BATCH_SYSTEMS = ("slurm", "pbs")
LENDERS = ("static", *BATCH_SYSTEMS)
"""Providers of hosts that exist already, and stay."""

NAMES = ("local", "gce", *LENDERS)


def provider(name: str, store: Store, cloud: CloudSpec | None = None, *, keep: bool = True) -> Provider:
    """The provider called `name`.

    Args:
        name: Its name.
        store: Where its state lies on this computer.
        cloud: Project and endpoint of its calls, where it has any.
        keep: Whether it may make files in the state directory; without, nothing is to be made with it.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "local":
        from provision.local import LocalProvider

        return LocalProvider(store.local)
    if name == "gce":
        from provision.gce.provider import GceProvider

        return GceProvider(store.owner(keep=keep), caller(), store.journal, cloud or CloudSpec())
    if name == "static":
        from provision.static.provider import StaticProvider

        return StaticProvider(store.static)
    if name in BATCH_SYSTEMS:
        from provision.allocation.provider import AllocationProvider

        return AllocationProvider(name, store.static / name)
    raise UsageError(
        f"there is no provider {name!r}",
        cause=f"providers of this version: {', '.join(NAMES)}",
        next_steps=[Step("up", "--provider", "local")],
    )
