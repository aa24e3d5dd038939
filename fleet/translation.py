"""Errors of providers and of training scripts as errors of the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from fleet.errors import (
    CapacityError,
    CredentialsError,
    FleetError,
    NotReadyError,
    QuotaError,
    UnreachableError,
    UsageError,
)
from fleet.steps import Again, step_of
from provision.provider import ErrorKind, ProviderError
from train.errors import ScriptError, TrainError

T = TypeVar("T")

_PROVIDER: dict[ErrorKind, type[FleetError]] = {
    ErrorKind.USAGE: UsageError,
    ErrorKind.MISSING: NotReadyError,
    ErrorKind.CREDENTIALS: CredentialsError,
    ErrorKind.QUOTA: QuotaError,
    ErrorKind.CAPACITY: CapacityError,
    ErrorKind.UNREACHABLE: UnreachableError,
}


def translate(error: ProviderError | TrainError) -> FleetError:
    """Return the error of the program for an error of a provider or of the training side."""
    if isinstance(error, ProviderError):
        kind, command = _PROVIDER[error.kind], "up"
    else:
        kind, command = UsageError if isinstance(error, ScriptError) else NotReadyError, ""
    again = () if error.again is None else (Again(error.again, command),)
    steps = (*again, *map(step_of, error.next_steps))
    if not steps and kind is UnreachableError:  # it may answer the next time
        steps = (Again({}),)
    return kind(error.message, cause=error.cause, hint=error.hint, next_steps=steps)


def meaning(error: Exception) -> FleetError | None:
    """Return the error of the program for an error of a provider or of the training side; None for others."""
    return translate(error) if isinstance(error, (ProviderError, TrainError)) else None


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


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of a provider or of the training side as errors of the program."""
    try:
        yield
    except (ProviderError, TrainError) as error:
        raise translate(error) from error
