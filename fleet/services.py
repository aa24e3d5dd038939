"""Services outside the program that commands use: state, questions, providers, and the clock."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleet.providers import make_provider
from fleet.state import Store
from fleet.translation import wrap_provider
from fleet.waits import announce
from provision.options import ProviderOptions
from provision.provider import Provider


@dataclass(frozen=True)
class Services:
    """The services outside the program.

    Attributes:
        store: State on this computer.
        confirm: Asks the user a question; returns True if no user can be asked.
        consent: Asks the user whether something may be lost; an empty answer means no, and so does an input that
            is not a terminal. `--yes` agrees.
        attended: Whether a user can be asked, or has agreed to everything in advance.
        confirm_keys: Asks the user for a confirmation that `--yes` does not give; None: no user can be asked.
        unread: Returns whether the reader of the output is gone.
        report: Takes what the command waits for; called from any thread.
        clock: Returns the time in seconds since the epoch.
        sleep: Waits for a number of seconds.
    """

    store: Store
    confirm: Callable[[str], bool]
    attended: bool = True
    consent: Callable[[str], bool] = lambda _: False
    confirm_keys: Callable[[str], bool] | None = None
    unread: Callable[[], bool] = lambda: False
    report: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def provider(self, options: ProviderOptions, *, keep: bool = True) -> Provider:
        """Return the provider of a fleet; its errors are those of the program.

        Args:
            options: Options of the fleet.
            keep: The provider may create files in the state directory.
        """
        text = f"waiting for answers of {options.title}"
        around = functools.partial(announce, self.report, lambda: text) if options.rents else contextlib.nullcontext
        return wrap_provider(self.open_provider(options, keep=keep), around)

    def open_provider(self, options: ProviderOptions, *, keep: bool) -> Provider:
        """Return the provider itself."""
        return make_provider(options, self.store, keep=keep, report=self.report)
