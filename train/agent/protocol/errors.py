"""Errors that end a request or a conversation."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from train.agent.protocol.records import ReasonKind, Refusal, Refused

_KINDS = {
    errno.ENOSPC: ReasonKind.DISK_FULL,
    errno.EDQUOT: ReasonKind.DISK_FULL,
    errno.EADDRINUSE: ReasonKind.PORT_IN_USE,
    errno.ETIMEDOUT: ReasonKind.UNREACHABLE,
    errno.EHOSTUNREACH: ReasonKind.UNREACHABLE,
    errno.ENETUNREACH: ReasonKind.UNREACHABLE,
}
_REFUSALS = {Refusal.DISK: ReasonKind.DISK_FULL, Refusal.PORT: ReasonKind.PORT_IN_USE}


class RefusedError(Exception):
    """The request cannot be met.

    Args:
        kind: Why, as a type.
        reason: Why, as a sentence for the user.
        hint: What to change, one sentence.
        job: The running job, where `kind` is BUSY.
        cause: Why, in the words of a program that was asked.
        next_step: Commands that can be pasted into a shell, one a line.
    """

    def __init__(
        self, kind: Refusal, reason: str, hint: str = "", job: str = "", cause: str = "", next_step: str = ""
    ) -> None:
        super().__init__(reason)
        self.record = Refused(kind, reason, hint, job, cause, next_step)


class ClientGoneError(Exception):
    """The client closed the connection, or was silent for too long."""


def reason_kind(error: Optional[BaseException]) -> ReasonKind:
    """Return the class of a refusal, of an error of the operating system, or of the one that caused `error`."""
    while error is not None:
        if isinstance(error, RefusedError) and error.record.kind in _REFUSALS:
            return _REFUSALS[error.record.kind]
        if isinstance(error, (ConnectionError, socket.timeout)):
            return ReasonKind.UNREACHABLE
        if isinstance(error, OSError) and error.errno in _KINDS:
            return _KINDS[error.errno]
        error = error.__cause__
    return ReasonKind.OTHER
