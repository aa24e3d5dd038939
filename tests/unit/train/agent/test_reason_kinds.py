"""The class of a reason follows from the error, whatever its text."""

from __future__ import annotations

import errno

import pytest

from train.agent.protocol.errors import RefusedError, reason_kind
from train.agent.protocol.records import ReasonKind, Refusal


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, ReasonKind.OTHER),
        (ValueError("no"), ReasonKind.OTHER),
        (OSError(errno.ENOSPC, "full"), ReasonKind.DISK_FULL),
        (RefusedError(Refusal.DISK, "full"), ReasonKind.DISK_FULL),
        (RefusedError(Refusal.PORT, "no free port"), ReasonKind.PORT_IN_USE),
        (RefusedError(Refusal.BUSY, "busy"), ReasonKind.OTHER),
        (caused_by(RefusedError(Refusal.FAULT, "why"), OSError(errno.EDQUOT, "quota")), ReasonKind.DISK_FULL),
        (ConnectionResetError(), ReasonKind.UNREACHABLE),
    ],
)
def test_the_class_of_a_reason(error: Exception | None, kind: ReasonKind) -> None:
    assert reason_kind(error) is kind
