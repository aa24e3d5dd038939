"""What a verb needs of the outside world, so that tests can give it another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fleet.providers import make_provider
from fleet.state import Store
from provision.options import ProviderOptions
from provision.provider import Provider


@dataclass(frozen=True)
class Ports:
    """The outside world.

    Attributes:
        store: State on this computer.
        confirm: Asks the user a question; True where nobody can be asked.
        consent: Asks the user whether something may be lost; a line break alone means no, and so does an input that
            is not a terminal. `--yes` agrees.
        attended: Somebody can be asked, or has said yes to everything.
        vouch: Asks the user for a word that `--yes` does not give; None: nobody can be asked.
        unread: Returns whether the reader of the output has gone.
        clock: Seconds since the epoch.
        sleep: Lets seconds pass.
    """

    store: Store
    confirm: Callable[[str], bool]
    attended: bool = True
    consent: Callable[[str], bool] = lambda _: False
    vouch: Callable[[str], bool] | None = None
    unread: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def provider(self, options: ProviderOptions, *, keep: bool = True) -> Provider:
        """Return the provider of a fleet.

        Args:
            options: Options of the fleet.
            keep: It may create files in the state directory.
        """
        return make_provider(options, self.store, keep=keep)
