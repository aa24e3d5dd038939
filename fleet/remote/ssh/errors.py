"""Translate exceptions of paramiko, fabric and sockets to errors of this program, only in this module."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError, ProxyCommandFailure

from fleet.errors import FleetError, UnreachableError, WrongHostError
from fleet.remote.fanout import where
from fleet.steps import NextStep, Shell, Step
from provision.model import Host


class _Row(NamedTuple):
    kind: type[BaseException]
    reason: str  # follows the host's name
    cause: Callable[[Any], str]
    next_steps: tuple[NextStep, ...] = ()
    hint: str = ""


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _of_socket(error: OSError) -> str:
    return error.strerror or _text(error)


def _of_attempts(error: NoValidConnectionsError) -> str:
    return ", ".join(dict.fromkeys(_of_socket(item) for item in error.errors.values() if isinstance(item, OSError)))


def _of_host_key(error: paramiko.BadHostKeyException) -> str:
    return (
        f"it presents {error.key.get_name()} {error.key.fingerprint} instead of the pinned "
        f"{error.expected_key.get_name()} {error.expected_key.fingerprint}: a different computer has this "
        "address now, or the connection is intercepted"
    )


class _OtherKeyTypeError(IncompatiblePeer):
    """The host has no key of the pinned type."""


class SecondFactorError(paramiko.AuthenticationException):
    """The host accepts the key, and requires another factor in addition."""


def login_step(host: Host) -> NextStep:
    """Return the command with which a user logs in to a host by hand."""
    if not host.is_users:
        return Step("ssh", host.name)
    key = ["-i", host.identities[0]] if len(host.identities) == 1 else []
    port = ["-p", str(host.port)] if host.port != 22 else []
    return Shell(shlex.join(["ssh", *key, *port, f"{host.user}@{host.address}"]))


def _forget(host: Host) -> Shell:
    """Return the command that removes a host from the user's known_hosts."""
    name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    return Shell(shlex.join(["ssh-keygen", "-R", name]))


_UP, _STATUS = (Step("up"),), (Step("status"),)
_DOWN_THEN_UP, _STATUS_THEN_UP = (Step("down"), *_UP), (*_STATUS, *_UP)
_OTHER_HOST = (paramiko.BadHostKeyException, _OtherKeyTypeError)
_FINAL = (*_OTHER_HOST, paramiko.AuthenticationException)
# paramiko raises an AuthenticationException also if the connection ends during the login.
_CUT = "transport shut down"

# The first row with a matching type is used, so special types precede general ones.
_TABLE: tuple[_Row, ...] = (
    _Row(
        paramiko.BadHostKeyException, "has a different host key than before",
        _of_host_key, _DOWN_THEN_UP,
    ),
    _Row(
        _OtherKeyTypeError, "has a different host key than before",
        lambda _: "it has no key of the pinned type: a different computer has this address now, or the connection is "
        "intercepted", _DOWN_THEN_UP,
    ),
    _Row(
        SecondFactorError, "rejects the login with a key alone", _text,
        hint="fleet cannot answer for you: let its SSH server accept a key alone (AuthenticationMethods publickey)",
    ),
    _Row(
        paramiko.AuthenticationException, "refuses the fleet's key",
        lambda _: "the key is not in the authorized_keys of the login", _UP,
    ),
    _Row(
        IncompatiblePeer, "shares no SSH algorithm with this program", _text,
        hint="let its SSH server offer one of both, such as the key exchange curve25519-sha256",
    ),
    _Row(paramiko.ChannelException, "refuses another session on its connection", lambda e: e.text, _STATUS),
    _Row(ProxyCommandFailure, "cannot be reached through its proxy command", _text, _STATUS),
    _Row(NoValidConnectionsError, "cannot be connected to", _of_attempts, _UP),
    _Row(paramiko.SSHException, "broke off the SSH connection", _text, _STATUS),
    _Row(socket.gaierror, "has an address that is not known here", _of_socket, _STATUS),
    _Row(TimeoutError, "does not answer", lambda _: "", _STATUS_THEN_UP),
    _Row(EOFError, "closed the connection", lambda _: "", _STATUS),
    _Row(OSError, "cannot be connected to", _of_socket, _STATUS),
)  # fmt: skip


def translate(host: Host, error: BaseException, doing: str = "") -> FleetError | None:
    """Return the error for an exception, or None if its type is unknown.

    Args:
        host: The host of the connection.
        error: The exception of paramiko, fabric, or a socket.
        doing: The action, which follows ``while``.
    """
    if is_cut(error):
        error = EOFError()
    error = _second_factor(error) or error
    if isinstance(error, IncompatiblePeer) and "host key" in str(error):
        error = _OtherKeyTypeError()
    for row in _TABLE:
        if isinstance(error, row.kind):
            during = f" while {doing}" if doing else ""
            meant = WrongHostError if issubclass(row.kind, _FINAL) else UnreachableError
            hint, steps = row.hint, row.next_steps
            if host.is_users and row.kind in _OTHER_HOST:
                hint, steps = "only if the host was installed again:", (_forget(host), *steps)
            steps = (login_step(host),) if row.kind is SecondFactorError else steps
            return meant(f"{where(host)} {row.reason}{during}", cause=row.cause(error), hint=hint, next_steps=steps)
    return None


def _second_factor(error: BaseException) -> BaseException | None:
    tried = [source.result for source in error.result] if isinstance(error, AuthFailure) else [error]
    return next((each for each in tried if isinstance(each, SecondFactorError)), None)


def is_refused(error: BaseException) -> bool:
    """Return whether the host rejects every key."""
    is_final = isinstance(error, paramiko.AuthenticationException)
    return is_final and not is_cut(error) and _second_factor(error) is None


def is_cut(error: BaseException) -> bool:
    """Return whether the connection ended before the host had decided about the first key.

    A host that closes the connection after too many keys has refused them.
    """
    first = error.result[0].result if isinstance(error, AuthFailure) and error.result else error
    return isinstance(first, paramiko.AuthenticationException) and _CUT in str(first)


@contextlib.contextmanager
def translated(host: Host, doing: str = "") -> Iterator[None]:
    """Raise exceptions of the SSH libraries as errors for the user."""
    try:
        yield
    except FleetError:
        raise
    except Exception as error:
        meant = translate(host, error, doing)
        if meant is None:
            raise
        raise meant from error
