"""Run an action on many hosts at once: wait for every host, and report every failure."""

from __future__ import annotations

import contextlib
import re
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fleet.errors import FleetError, InternalError, UnreachableError, fold
from fleet.steps import Step
from provision.model import Host
from train.agent.protocol.wording import endpoint

T = TypeVar("T")

_INTERRUPTED_JOIN_S = 2.0
_FILES = 4096


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of an action on one host: either `error` is None, or `value` is.

    Attributes:
        host: The host.
        value: The result; None if it failed.
        error: The error; None if it succeeded.
    """

    host: Host
    value: T | None = None
    error: FleetError | None = None


def where(host: Host) -> str:
    """Return a host as errors name it: ``worker-1 (10.0.0.3)``, with the port unless it is 22."""
    if not host.address:
        return host.name
    address = host.address if host.port == 22 else endpoint(host.address, host.port)
    return f"{host.name} ({address})"


def no_answer(host: Host, deadline_s: float, doing: str) -> UnreachableError:
    """Return the error of a wait that exceeded its deadline."""
    message = f"{where(host)} did not answer within {deadline_s:g} s while {doing}"
    return UnreachableError(message, next_steps=[Step("status")])


def fan_out(
    hosts: Sequence[Host], action: Callable[[Host], T], *, abort: Callable[[], None] | None = None
) -> list[Outcome[T]]:
    """Run `action` on all hosts at once, and wait for every one of them.

    Args:
        hosts: The hosts.
        action: Called with each host, in a separate thread.
        abort: Called once on KeyboardInterrupt, to close open connections so that running actions end.

    Returns:
        One outcome per host, in the order of `hosts`. An exception of the action is the error of its host; an
        exception other than FleetError becomes an InternalError.

    Raises:
        KeyboardInterrupt: running actions are aborted.
    """
    _raise_file_limit()
    outcomes: dict[int, Outcome[T]] = {}

    def work(number: int, host: Host) -> None:
        outcomes[number] = _outcome(host, action)

    threads = [
        threading.Thread(target=work, args=item, name=f"fan-out-{item[0]}", daemon=True) for item in enumerate(hosts)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        if abort is not None:
            abort()
        end = time.monotonic() + _INTERRUPTED_JOIN_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        raise
    return [outcomes[number] for number in range(len(hosts))]


def _outcome(host: Host, action: Callable[[Host], T]) -> Outcome[T]:
    try:
        return Outcome(host, value=action(host))
    except FleetError as error:
        return Outcome(host, error=error)
    except Exception as error:  # noqa: BLE001 - the answer of one host must not hide the other outcomes
        return Outcome(host, error=InternalError.of(error, f"{where(host)}: "))


def _raise_file_limit() -> None:
    """Allow as many open files as connections to many hosts need, as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has another limit, too
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def errors_by_host(outcomes: Iterable[Outcome[Any]]) -> dict[str, FleetError]:
    """Return the errors of the hosts that failed, by name."""
    return {outcome.host.name: outcome.error for outcome in outcomes if outcome.error is not None}


def values_of(outcomes: Iterable[Outcome[T]]) -> list[T]:
    """Return the results of the hosts that succeeded, in their order."""
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def raise_failures(outcomes: Sequence[Outcome[T]], verb: str = "reach all hosts") -> list[T]:
    """Return the values of `outcomes`, or raise one error for all hosts that failed.

    Hosts that failed for the same reason are folded: ``cannot prepare the job: worker-[0-7]: no space left``.

    Args:
        outcomes: Result of `fan_out`.
        verb: The action, for the message: ``prepare the job``.

    Raises:
        FleetError: at least one host failed; its type is the one with the lowest exit code among the errors.
    """
    failed = [(outcome.host, outcome.error) for outcome in outcomes if outcome.error is not None]
    if not failed:
        return [outcome.value for outcome in outcomes if outcome.error is None]  # type: ignore[misc]
    groups: dict[tuple[object, ...], tuple[str, list[tuple[Host, FleetError]]]] = {}
    for host, error in failed:
        reason, *details = (_reason(host, text) for text in (error.message, error.cause, error.hint))
        _, group = groups.setdefault((reason, *details, str(error.next_steps)), (reason, []))
        group.append((host, error))
    worst = min((error for _, error in failed), key=lambda error: error.exit_code)
    message = "; ".join(_message(reason, group) for reason, group in groups.values())
    causes = dict.fromkeys(error.cause for _, ((_, error), *_) in groups.values() if error.cause)
    raise type(worst)(
        f"cannot {verb}: {message}", cause="; ".join(causes), hint=worst.hint, next_steps=worst.next_steps
    ) from worst


def _reason(host: Host, text: str) -> str:
    # Do not match within a path or a longer name.
    return re.sub(rf"(?<![\w./-]){re.escape(host.name)}(?![\w/-])", "\0", text.replace(where(host), "\0"))


def _message(reason: str, group: Sequence[tuple[Host, FleetError]]) -> str:
    if len(group) == 1:
        host, error = group[0]
        return error.message if host.name in error.message else f"{host.name}: {error.message}"
    names = fold(host.name for host, _ in group)
    if reason.startswith("\0"):
        reason = reason[1:]
        return names + reason.replace("\0", "it")
    return f"{names}: {reason.replace(chr(0), 'it')}"
