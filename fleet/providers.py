"""Create providers, and translate their errors into those of the program."""

from __future__ import annotations

from collections.abc import Callable

from fleet.config import caller
from fleet.errors import UsageError
from fleet.state import Store
from fleet.steps import Step
from provision.options import ProviderOptions
from provision.provider import Provider, Site
from provision.registry import UnknownProviderError, installed_names, options_class, provider_class


def find_options(name: str) -> type[ProviderOptions]:
    """Return the options class of a provider.

    Raises:
        UsageError: the provider does not exist.
    """
    try:
        return options_class(name)
    except UnknownProviderError as error:
        raise _unknown_error(error) from error


def make_provider(
    options: ProviderOptions, store: Store, *, keep: bool = True, report: Callable[[str], None] = lambda _: None
) -> Provider:
    """Return the provider of a fleet.

    Args:
        options: Options of the fleet.
        store: State on this computer.
        keep: The provider may create files in the state directory; otherwise it cannot create instances.
        report: Takes what the provider waits for.

    Raises:
        UsageError: the provider cannot be imported.
    """
    try:
        kind = provider_class(type(options))
    except UnknownProviderError as error:
        raise _unknown_error(error) from error
    return kind.open(options, Site(store.root, caller(), lambda: store.owner(keep=keep), store.journal, report))


def _unknown_error(error: UnknownProviderError) -> UsageError:
    return UsageError(
        str(error),
        cause=f"available providers: {', '.join(installed_names())}",
        next_steps=[Step("up", "--provider", "local")],
    )
