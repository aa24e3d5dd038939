"""What a verb needs of the outside world, so that tests can give it another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fleet.providers import provider
from fleet.state import Store
from provision.provider import Provider


@dataclass(frozen=True)
class Ports:
    """The outside world.

    Attributes:
        store: State on this computer.
        confirm: Asks the user a question; True where nobody can be asked.
        clock: Seconds since the epoch.
    """

    store: Store
    confirm: Callable[[str], bool]
    clock: Callable[[], float] = time.time

    def provider(self, name: str) -> Provider:
        """The provider called `name`."""
        return provider(name, self.store)
