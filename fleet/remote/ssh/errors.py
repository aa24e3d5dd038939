"""Translate exceptions of paramiko, fabric and sockets to errors of this program, only in this module."""

from __future__ import annotations

import shlex
import socket
from typing import NamedTuple

import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import IncompatiblePeer

from fleet.errors import FleetError, UnreachableError, WrongHostError
from fleet.remote.fanout import where
from fleet.steps import NextStep, Shell, Step
from provision.model import Host


class SecondFactorError(paramiko.AuthenticationException):
    """The host accepts the key, and requires another factor in addition."""


class _Row(NamedTuple):
    kind: type[BaseException]
    reason: str  # follows the host's name
    next_steps: tuple[NextStep, ...] = ()
    hint: str = ""


_UP, _STATUS = Step("up"), Step("status")

# The first row with a matching type is used, so special types precede general ones. Paramiko's thread passes on what
# its parsers and the cryptography raise, of any type.
_TABLE = (
    _Row(
        SecondFactorError,
        "rejects the login with a key alone",
        hint="fleet cannot answer for you: let its SSH server accept a key alone (AuthenticationMethods publickey)",
    ),
    _Row(paramiko.AuthenticationException, "refuses the fleet's key", (_UP,)),
    _Row(
        IncompatiblePeer,
        "shares no SSH algorithm with this program",
        hint="let its SSH server offer one of both, such as the key exchange curve25519-sha256",
    ),
    _Row(paramiko.SSHException, "broke off the SSH connection", (_STATUS,)),
    _Row(socket.gaierror, "has an address that is not known here", (_STATUS,)),
    _Row(EOFError, "closed the connection", (_STATUS,)),
    _Row(OSError, "cannot be connected to", (_UP, _STATUS)),
    _Row(Exception, "broke off the SSH connection", (_STATUS,)),
)


def login_step(host: Host) -> NextStep:
    """Return the command with which a user logs in to a host by hand."""
    if not host.is_users:
        return Step("ssh", host.name)
    key = ["-i", host.identities[0]] if len(host.identities) == 1 else []
    port = ["-p", str(host.port)] if host.port != 22 else []
    return Shell(shlex.join(["ssh", *key, *port, f"{host.user}@{host.address}"]))


def translate(host: Host, error: Exception, doing: str = "") -> FleetError:
    """Return the error for an exception.

    Args:
        host: The host of the connection.
        error: The exception of paramiko, fabric, or a socket.
        doing: The action, which follows ``while``.
    """
    during = f" while {doing}" if doing else ""
    if is_cut(error):
        error = EOFError()
    if isinstance(error, paramiko.BadHostKeyException):
        presents = f"{error.key.get_name()} {error.key.fingerprint} instead of the pinned "
        return _other_key(
            host, during, presents + f"{error.expected_key.get_name()} {error.expected_key.fingerprint}"
        )
    if isinstance(error, IncompatiblePeer) and "host key" in str(error):
        return _other_key(host, during, "it has no key of the pinned type")
    error = _second_factor(error) or error
    kind, reason, steps, hint = next(row for row in _TABLE if isinstance(error, row.kind))
    if kind is SecondFactorError:
        steps = (login_step(host),)
    raised = WrongHostError if isinstance(error, paramiko.AuthenticationException) else UnreachableError
    return raised(f"{where(host)} {reason}{during}", cause=_cause(error), hint=hint, next_steps=steps)


def _cause(error: BaseException) -> str:
    if isinstance(error, SecondFactorError):
        return str(error)
    if isinstance(error, paramiko.AuthenticationException):
        return "the key is not in the authorized_keys of the login"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
        return str(error) or ("" if isinstance(error, EOFError) else type(error).__name__)
    return f"the server sent invalid data: {type(error).__name__}: {error}"


def _other_key(host: Host, during: str, difference: str) -> WrongHostError:
    hint = ""
    steps: list[NextStep] = [Step("down"), _UP]
    if host.is_users:
        name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
        hint = "only if the host was installed again:"
        steps = [Shell(shlex.join(["ssh-keygen", "-R", name])), *steps]
    return WrongHostError(
        f"{where(host)} has a different host key than before{during}",
        cause=f"{difference}: a different computer has this address now, or the connection is intercepted",
        hint=hint,
        next_steps=steps,
    )


def _second_factor(error: BaseException) -> SecondFactorError | None:
    tried = [source.result for source in error.result] if isinstance(error, AuthFailure) else [error]
    return next((each for each in tried if isinstance(each, SecondFactorError)), None)


def is_refused(error: BaseException) -> bool:
    """Return whether the host rejects every key."""
    is_final = isinstance(error, paramiko.AuthenticationException)
    return is_final and not is_cut(error) and _second_factor(error) is None


def is_cut(error: BaseException) -> bool:
    """Return whether the connection ended before the host had decided about the first key.

    Paramiko raises an AuthenticationException then, too. A host that closes the connection after too many keys has
    refused them.
    """
    first = error.result[0].result if isinstance(error, AuthFailure) and error.result else error
    return isinstance(first, paramiko.AuthenticationException) and "transport shut down" in str(first)
