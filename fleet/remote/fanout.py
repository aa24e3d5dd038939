"""Run an action on many hosts at once: wait for every host, and report every failure."""

from __future__ import annotations

import queue
import re
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fleet.errors import FleetError, InternalError, NotReadyError, UnreachableError, fold
from fleet.steps import Shell, Step
from provision.model import Host
from provision.quantities import counted
from train.agent.protocol.wording import endpoint

T = TypeVar("T")

_INTERRUPTED_JOIN_S = 2.0
_FILES_PER_HOST = 3  # socket and wake-up pipe
_OTHER_FILES = 128
_FILES_MIN = 32  # with which a small fleet works
_FILES = 65_536  # enough for several fleets at the same time
_FILE_LIMIT_LOCK = threading.Lock()


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
    hosts: Sequence[Host],
    action: Callable[[Host], T],
    *,
    limit: int = 128,
    abort: Callable[[], None] | None = None,
) -> list[Outcome[T]]:
    """Run `action` on all hosts, at most `limit` at a time, and wait for every one of them.

    Args:
        hosts: The hosts.
        action: Called with each host, in a separate thread.
        limit: Largest number of hosts at a time.
        abort: Called once on KeyboardInterrupt, to close open connections so that running actions end.

    Returns:
        One outcome per host, in the order of `hosts`. An exception of the action is the error of its host; an
        exception other than FleetError becomes an InternalError.

    Raises:
        KeyboardInterrupt: actions that had not begun are skipped, running ones are aborted.
    """
    _raise_file_limit(len(hosts))
    calls = _Calls(hosts, action)
    threads = [
        threading.Thread(target=calls.work, name=f"fan-out-{number}", daemon=True)
        for number in range(min(limit, len(hosts)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        calls.cancel()
        if abort is not None:
            abort()
        end = time.monotonic() + _INTERRUPTED_JOIN_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        raise
    return calls.outcomes()


def _raise_file_limit(hosts: int) -> None:
    """Allow as many open files as connections to all hosts need, and some more if the hard limit is high enough.

    Raises:
        NotReadyError: the hard limit is lower than the connections alone need.
    """
    needed = _OTHER_FILES + _FILES_PER_HOST * hosts
    least = _FILES_MIN + _FILES_PER_HOST * hosts
    with _FILE_LIMIT_LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _FILES if hard == resource.RLIM_INFINITY else min(hard, max(needed, _FILES))
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return
        if most < least and most == hard:
            raise NotReadyError(
                f"connections to {counted(hosts, 'host')} need {least} open files, and the limit is {hard}",
                hint="raise the hard limit of this user (nofile in /etc/security/limits.conf), or use fewer hosts",
                next_steps=[Shell("ulimit -Hn")],
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (most if most == hard else max(needed, most), hard))


class _Calls(Generic[T]):
    def __init__(self, hosts: Sequence[Host], action: Callable[[Host], T]) -> None:
        self._hosts = hosts
        self._action = action
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._outcomes: dict[int, Outcome[T]] = {}
        for number in range(len(hosts)):
            self._waiting.put(number)

    def work(self) -> None:
        while True:
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return
            host = self._hosts[number]
            try:
                self._outcomes[number] = Outcome(host, value=self._action(host))
            except FleetError as error:
                self._outcomes[number] = Outcome(host, error=error)
            except Exception as error:  # noqa: BLE001 - the answer of one host must not hide the other outcomes
                self._outcomes[number] = Outcome(host, error=InternalError.of(error, f"{where(host)}: "))

    def cancel(self) -> None:
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                return

    def outcomes(self) -> list[Outcome[T]]:
        return [self._outcomes[number] for number in range(len(self._hosts))]


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
