"""Errors of the program: message, cause, hint, next steps, and exit code; and names of hosts in messages.

    FleetError
    ├── InternalError       1   a bug of this program
    ├── UsageError          2   the command line or a file it names is wrong; nothing was started
    ├── CredentialsError   10   the caller has no valid credentials for a provider
    ├── QuotaError         11   a provider's limit is reached
    ├── CapacityError      12   a provider has no capacity now
    ├── UnreachableError   13   a host does not answer, or is not the host it was
    │   └── WrongHostError      a host has another key than the pinned one, or rejects the login
    ├── NotReadyError      14   a host answers but cannot run the job, or another command is using the fleet
    │   └── DamagedStateError   a file of the state directory cannot be read
    ├── JobFailedError    100   a task of the job failed
    ├── JobNotFinished    101   the job keeps running without this program
    ├── NotFoundError     102   no such fleet, job, or task
    └── CancelledError    103   stopped on request

Any other exception that reaches the top level is a bug of this program: exit code 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fleet.steps import Again, NextStep, step_of
from provision.provider import ErrorKind, ProviderError
from train.errors import ScriptError, TrainError

_E = TypeVar("_E", bound="FleetError")


_LONGEST = 4000  # characters of a text; a file can contain a name of any length


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class FleetError(Exception):
    """An error that the user can act on.

    Args:
        message: What happened, one sentence in lower case without a final period.
        cause: Why, if it is known and adds something.
        hint: What to change, one sentence.
        next_steps: Commands to run next, the most useful first.
    """

    exit_code = 1

    def __init__(self, message: str, *, cause: str = "", hint: str = "", next_steps: Sequence[NextStep] = ()) -> None:
        super().__init__(message)
        self.message, self.cause, self.hint = map(_shorten, (message, cause, hint))
        self.next_steps = tuple(next_steps)

    def replaced(self: _E, **texts: Any) -> _E:
        """Return this error with other arguments; None keeps one."""
        kept = {name: getattr(self, name) for name in ("message", "cause", "hint", "next_steps")}
        return type(self)(**kept | {name: text for name, text in texts.items() if text is not None})


class InternalError(FleetError):
    """A bug of this program; `__cause__` is the exception that was raised."""

    @classmethod
    def of(cls, error: Exception, prefix: str = "") -> InternalError:
        """Return the error that reports an exception which nothing else handles.

        Args:
            error: The exception.
            prefix: Source of the error, for example a host, followed by a colon and a space.
        """
        made = cls(f"{prefix}internal error: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made


class UsageError(FleetError):
    """The command line, or a file that it names, is wrong; nothing was started."""

    exit_code = 2


class CredentialsError(FleetError):
    """The caller has no valid credentials for a provider."""

    exit_code = 10


class QuotaError(FleetError):
    """A provider's limit is reached."""

    exit_code = 11


class CapacityError(FleetError):
    """A provider has no capacity now."""

    exit_code = 12


class UnreachableError(FleetError):
    """A host does not answer, or does not prove to be the host that was pinned."""

    exit_code = 13


class WrongHostError(UnreachableError):
    """A host has another key than the pinned one, or rejects the login; a retry helps only while the host boots."""


class NotReadyError(FleetError):
    """A host answers but cannot run the job, or another command is using the fleet."""

    exit_code = 14


class DamagedStateError(NotReadyError):
    """A file of the state directory cannot be read."""


class JobFailedError(FleetError):
    """A task of the job failed."""

    exit_code = 100


class JobNotFinished(FleetError):  # not a failure: the job keeps running
    """The job keeps running without this program."""

    exit_code = 101


class NotFoundError(FleetError):
    """No such fleet, job or task."""

    exit_code = 102


class CancelledError(FleetError):
    """Stopped on request."""

    exit_code = 103


@contextmanager
def explain_interrupt(message: str, *next_steps: NextStep) -> Iterator[None]:
    """Raise CancelledError if Ctrl-C interrupts the block.

    Args:
        message: What was interrupted, and what may be left.
        next_steps: Commands to run next, the most useful first.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CancelledError(message, next_steps=next_steps) from None


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


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of a provider or of the training side as errors of the program."""
    try:
        yield
    except (ProviderError, TrainError) as error:
        raise translate(error) from error


_TYPES = ("chief", "worker", "ps", "evaluator")


def order(name: str) -> tuple[int, str, int]:
    """Return the sort key of a task or host: by type, the chief first, and worker-2 before worker-10."""
    kind, _, index = name.rpartition("-")
    if not (index.isascii() and index.isdigit()):
        return (len(_TYPES), name, 0)
    return (_TYPES.index(kind) if kind in _TYPES else _TYPES.index("worker"), kind, int(index))


def fold(names: Iterable[str]) -> str:
    """Return names in order with their numbers folded: ``alpha, worker-[0-3,7]``; duplicates count once."""
    numbers: dict[str, list[int]] = {}
    for name in sorted(sorted(set(names)), key=order):
        match = re.fullmatch(r"(.*-)(0|[1-9][0-9]*)", name, re.ASCII | re.DOTALL)
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
        else:
            numbers.setdefault(name, [])
    return ", ".join(_fold_indexes(stem, indexes) for stem, indexes in numbers.items())


def _fold_indexes(stem: str, numbers: list[int]) -> str:
    if len(numbers) <= 1:
        return stem + "".join(map(str, numbers))
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return f"{stem}[{','.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)}]"
