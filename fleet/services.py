"""Services outside the program that commands use: state, questions, providers, and the clock."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fleet.errors import CancelledError, UsageError, translate_errors
from fleet.state import Store, caller
from fleet.steps import NextStep, Step
from provision.options import ProviderOptions
from provision.provider import Provider, Site
from provision.registry import UnknownProviderError, installed_names, options_class, provider_class

T = TypeVar("T")

ANNOUNCE_S = 1.5


@contextlib.contextmanager
def announce(report: Callable[[str], None], describe: Callable[[], str]) -> Iterator[None]:
    """Report what the block waits for, once, if it takes longer than ANNOUNCE_S."""
    timer = threading.Timer(ANNOUNCE_S, lambda: report(describe()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def find_options(name: str) -> type[ProviderOptions]:
    """Return the options class of a provider.

    Raises:
        UsageError: the provider does not exist.
    """
    try:
        return options_class(name)
    except UnknownProviderError as error:
        raise _unknown_error(error) from error


def _unknown_error(error: UnknownProviderError) -> UsageError:
    return UsageError(
        str(error),
        cause=f"available providers: {', '.join(installed_names())}",
        next_steps=[Step("up", "--provider", "local")],
    )


class _Translating:
    """An object whose methods raise errors of the program."""

    def __init__(self, inner: object, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._inner = inner
        self._around = around

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with translate_errors(), self._around():
                return value(*args, **kwargs)

        return call


def wrap_provider(provider: T, around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> T:
    """Return a provider that raises its errors as errors of the program, and makes each call within `around`."""
    return cast("T", _Translating(provider, around))


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

    def require_consent(self, loss: str, question: str, kept: CancelledError, agree: Sequence[NextStep]) -> None:
        """Ask the user whether something may be lost.

        Args:
            loss: What would be lost, a sentence.
            question: The question.
            kept: The error if the user declines.
            agree: The commands that answer in advance.

        Raises:
            UsageError: confirmation requires a terminal.
            CancelledError: the user declined.
        """
        if not self.attended:
            raise UsageError(f"{loss}, and confirmation requires a terminal", next_steps=agree)
        if not self.consent(question):
            raise kept

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
        """Return the provider itself.

        Raises:
            UsageError: it cannot be imported.
        """
        try:
            kind = provider_class(type(options))
        except UnknownProviderError as error:
            raise _unknown_error(error) from error
        owner = functools.partial(self.store.owner, keep=keep)
        return kind.open(options, Site(self.store.root, caller(), owner, self.store, self.report))
